// The view of the gallery that the address describes.
import { change, href, route } from "../route";

export const MODES = ["side", "flicker", "slider"] as const;
export type Mode = (typeof MODES)[number];

export interface View {
  q: string;
  /** Key of prompts → the requested value. */
  keys: Record<string, string>;
  status: string;
  /** The bounds of the score; "": no bound. */
  low: string;
  high: string;
  metric: string;
  judge: string;
  /** order, low, high, gap, judges, or low:<column>, high:<column>. */
  sort: string;
  /** The keys of columns. */
  hide: string[];
  /** The image in the viewer: its item and column; "": closed. */
  item: string;
  model: string;
  mode: Mode;
  /** The columns to compare with: keys of columns, or SOURCE; null: the address names none. */
  beside: string[] | null;
  zoom: string;
}

/** The key of the input images of an edit among keys of columns. */
export const SOURCE = "<source>";
// eval.sh separates names of models by it, so no name contains it
const SEPARATOR = ";";
const KEY = "key.";
const OF_VIEWER = ["item", "model", "mode", "with", "zoom"];

export function viewOf(query: URLSearchParams): View {
  const get = (name: string) => query.get(name) ?? "";
  const list = (name: string) => get(name).split(SEPARATOR).filter(Boolean);
  const keys = [...query]
    .filter(([name]) => name.startsWith(KEY))
    .map(([name, value]) => [name.slice(KEY.length), value]);
  return {
    q: get("q"),
    keys: Object.fromEntries(keys),
    status: get("status"),
    low: get("low"),
    high: get("high"),
    metric: get("metric"),
    judge: get("judge"),
    sort: get("sort") || "order",
    hide: list("hide"),
    item: get("item"),
    model: get("model"),
    mode: MODES.find((mode) => mode === get("mode")) ?? "side",
    beside: query.has("with") ? list("with") : null,
    zoom: get("zoom"),
  };
}

export const keyed = (name: string, value: string) => ({ [KEY + name]: value });
/** A list in the address. A separator alone distinguishes an empty list from a missing one. */
export const joined = (names: string[], evenEmpty = false) => names.join(SEPARATOR) || (evenEmpty ? SEPARATOR : "");

/** The query of the list alone, without the state of the viewer. */
export function ofList(query: URLSearchParams): string {
  const kept = new URLSearchParams(query);
  for (const name of OF_VIEWER) kept.delete(name);
  return kept.toString();
}

/** The link to an image of the list with this query. */
export function linkTo(benchmark: string, list: string, item: string, model: string): string {
  return href(["gallery", benchmark], { ...Object.fromEntries(new URLSearchParams(list)), item, model });
}

let opened = false;
/** Notes that the list opens the viewer: then the previous step of the history is the list. */
export function opening(): void {
  opened = true;
}

export function close(): void {
  if (opened) history.back();
  else change(Object.fromEntries(OF_VIEWER.map((name) => [name, ""])));
  opened = false;
}

/** Removes every filter; hidden columns and the order stay. */
export function unfilter(): void {
  const filters = [...route.value.query.keys()].filter((name) => name.startsWith(KEY));
  change(Object.fromEntries(["q", "status", "low", "high", ...filters].map((name) => [name, ""])));
}
