// The address describes a view completely: #/gallery/wise?q=cat&sort=low. Links to views can be shared.
import { signal } from "@preact/signals";

export interface Route {
  /** Decoded parts of the path; [] is the overview. */
  path: string[];
  query: URLSearchParams;
}

function parse(hash: string): Route {
  const [path = "", query = ""] = hash.replace(/^#\/?/, "").split("?", 2);
  const parts = path.split("/").filter(Boolean).map(decoded);
  return { path: parts, query: new URLSearchParams(query) };
}

function decoded(text: string): string {
  try {
    return decodeURIComponent(text);
  } catch {
    return text; // a user typed it
  }
}

export const route = signal<Route>(parse(location.hash));

addEventListener("hashchange", () => {
  route.value = parse(location.hash);
});

/** `name` as it is in an address, which cannot contain half a character. Names are looked up by it. */
export function slug(name: string): string {
  return name.replace(/\p{Surrogate}/gu, (half) => `\ufffd${half.charCodeAt(0).toString(16)}`);
}

/** The link to a view; empty values of `query` are left out. */
export function href(path: string[], query: Record<string, string> = {}): string {
  const given = Object.entries(query).filter(([, value]) => value !== "");
  const found = new URLSearchParams(given.map(([name, value]) => [name, slug(value)]));
  const asked = found.size ? `?${found}` : "";
  return `#/${path.map((part) => encodeURIComponent(slug(part))).join("/")}${asked}`;
}

/** Change the query of this view without a step in the history. */
export function change(query: Record<string, string>): void {
  const { path, query: now } = route.value;
  const link = href(path, { ...Object.fromEntries(now), ...query });
  history.replaceState(null, "", link);
  route.value = parse(link);
}

/** The `names` that the address lists under `key`; all names if it lists none. */
export function chosen(key: string, names: string[], otherwise = names): string[] {
  const asked = route.value.query.get(key);
  if (asked === null) return otherwise;
  const wanted = new Set(asked.split(";"));
  return names.filter((name) => wanted.has(slug(name)));
}

/** Keep a choice of names in the address. No model's or metric's name has a semicolon (it parts them on the command line). */
export function choose(key: string, names: string[]): void {
  change({ [key]: names.join(";") || ";" });
}
