// The address of a view is all of it: #/gallery/wise?q=cat&sort=low. Links to it can be shared.
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
    return text; // typed by hand
  }
}

export const route = signal<Route>(parse(location.hash));

addEventListener("hashchange", () => {
  route.value = parse(location.hash);
});

/** The link to a view; what is empty in `query` is left out. */
export function href(path: string[], query: Record<string, string> = {}): string {
  const found = new URLSearchParams(Object.entries(query).filter(([, value]) => value !== ""));
  const asked = found.size ? `?${found}` : "";
  return `#/${path.map(encodeURIComponent).join("/")}${asked}`;
}

/** Change the query of this view without a step in the history. */
export function change(query: Record<string, string>): void {
  const { path, query: now } = route.value;
  const link = href(path, { ...Object.fromEntries(now), ...query });
  history.replaceState(null, "", link);
  route.value = parse(link);
}
