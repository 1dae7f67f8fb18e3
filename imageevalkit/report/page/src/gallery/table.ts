// The gallery's data: prompts × columns, and the order of the shown prompts.
import { useEffect, useReducer, useState } from "preact/hooks";
import { type Cell, type Index, type Items, type More, type Prompts, part } from "../data";
import { slug } from "../route";
import type { View } from "./view";

export type Shot = Items["items"][number];
export type Input = NonNullable<Prompts["rows"][number]["inputs"]>[number];

/** The images of one cell, with the scores of each judge. */
export interface Column {
  /** The name of the column, also in the address. */
  key: string;
  /** Numbers of cells with the same images, one for each judge. The first cell has the images. */
  cells: number[];
  /** null: not loaded. */
  judgings: Judging[] | null;
  problem: string;
}

export interface Judging {
  cell: number;
  evaluator: string;
  items: Items;
  place: Map<string, number>;
}

export interface Row {
  order: number;
  prompt: string;
  text: string;
  items: string[];
  keys: Record<string, string>;
  inputs: Input[];
}

export interface Table {
  index: Index;
  columns: Column[];
  rows: Row[];
  filters: Record<string, string[]>;
  edits: boolean;
}

export interface Score {
  value: number;
  scale: number;
  evaluator: string;
}

export function columnsOf(index: Index, benchmark: number): Column[] {
  const cells = index.benchmarks[benchmark]?.cells ?? [];
  const groups = new Map<string, number[]>();
  for (const number of cells) {
    const { root, path } = cellAt(index, number);
    const of = `${root}/${path}`;
    groups.set(of, [...(groups.get(of) ?? []), number]);
  }
  const seen = new Map<string, number>();
  return [...groups.values()].map((numbers) => {
    const model = slug(cellAt(index, numbers[0] as number).model);
    const count = (seen.get(model) ?? 0) + 1; // the same model again comes from another output folder
    seen.set(model, count);
    return { key: count > 1 ? `${model} (${count})` : model, cells: numbers, judgings: null, problem: "" };
  });
}

export const cellAt = (index: Index, number: number) => index.cells[number] as Cell;

async function fill(index: Index, column: Column): Promise<void> {
  try {
    column.judgings = await Promise.all(
      column.cells.map(async (cell) => {
        const { folder, board } = cellAt(index, cell);
        const items = await part(`cells/${folder}/items`);
        const evaluator = items.evaluator || (board === null ? "" : (index.boards[board]?.evaluator ?? ""));
        return { cell, evaluator, items, place: new Map(items.items.map((item, n) => [item.id, n])) };
      }),
    );
    column.problem = "";
  } catch (error) {
    column.problem = (error as Error).message;
  }
}

/** The benchmark's prompts, and the items of each visible column, as they load. */
export function useTable(index: Index, benchmark: number, hidden: string[]): Table | string | null {
  const [table, setTable] = useState<Table | string | null>(null);
  const [, drawn] = useReducer<number, void>((n) => n + 1, 0);
  useEffect(() => {
    const columns = columnsOf(index, benchmark);
    part(`prompts/${benchmark}`).then(
      ({ rows, filters }) =>
        setTable({
          index,
          columns,
          filters,
          edits: rows.some((row) => row.inputs?.length),
          rows: rows.map((row, order) => ({ ...row, order, text: row.prompt.toLowerCase(), inputs: row.inputs ?? [] })),
        }),
      (error: Error) => setTable(error.message),
    );
  }, [index, benchmark]);
  const wanted = table && typeof table === "object" ? table.columns.filter((c) => !hidden.includes(c.key)) : [];
  const missing = wanted.filter((column) => !column.judgings && !column.problem);
  useEffect(() => {
    for (const column of missing) fill(index, column).then(() => drawn());
  }, [missing.map((column) => column.key).join(";")]);
  return table;
}

/** The further data of an item: undefined until they have loaded, a text if they cannot be loaded. */
export function useMore(
  index: Index,
  judging: Judging | undefined,
  id: string,
): More["items"][number] | string | undefined {
  const [found, setFound] = useState<{ id: string; cell: number; more: More["items"][number] | string }>();
  useEffect(() => {
    const place = judging?.place.get(id);
    if (!judging || place === undefined) return;
    const { size } = judging.items;
    const set = (more: More["items"][number] | string) => setFound({ id, cell: judging.cell, more });
    part(`cells/${cellAt(index, judging.cell).folder}/more-${Math.floor(place / size)}`).then(
      ({ items }) => set(items[place % size] ?? ""),
      (error: Error) => set(error.message),
    );
  }, [index, judging, id]);
  return found?.id === id && found.cell === judging?.cell ? found.more : undefined;
}

/** A column's items of a prompt, with repetitions in order. */
export function shotsOf(row: Row, column: Column): Shot[] {
  const first = column.judgings?.[0];
  if (!first) return [];
  return row.items.flatMap((id) => {
    const place = first.place.get(id);
    return place === undefined ? [] : [first.items.items[place] as Shot];
  });
}

/** The judge whose scores are shown: the requested one if it exists. */
export function judgingOf(column: Column, view: View): Judging | undefined {
  return column.judgings?.find((one) => one.evaluator === view.judge) ?? column.judgings?.[0];
}

export const metricsOf = (table: Table) => [
  ...new Set(table.columns.flatMap((c) => c.judgings?.flatMap((one) => one.items.metrics) ?? [])),
];

function valueIn(judging: Judging, id: string, metric: string): Score | null {
  const place = judging.place.get(id);
  const number = judging.items.metrics.indexOf(metric);
  const value = place === undefined ? null : judging.items.items[place]?.values?.[number];
  if (value === null || value === undefined) return null;
  return { value, scale: judging.items.scales[number] ?? 1, evaluator: judging.evaluator };
}

/** All scores of an item: metric → score. */
export function scoresOf(judging: Judging, id: string): [string, Score][] {
  return judging.items.metrics.flatMap((metric) => {
    const score = valueIn(judging, id, metric);
    return score ? [[metric, score] as [string, Score]] : [];
  });
}

export function scoreOf(column: Column, id: string, metric: string, view: View): Score | null {
  const judging = judgingOf(column, view);
  return judging ? valueIn(judging, id, metric) : null;
}

/** The state of an item in one word: the reason why it was not judged, else the outcome of its image. */
export function stateOf(column: Column, shot: Shot, view: View): string {
  if (shot.status !== "generated") return shot.status;
  const judged = judgedOf(column, shot, view);
  return ["unparsed", "judge_failed", "stale"].includes(judged) ? judged : "generated";
}

export function judgedOf(column: Column, shot: Shot, view: View): string {
  const judging = judgingOf(column, view);
  const place = judging?.place.get(shot.id);
  return (place !== undefined && judging?.items.items[place]?.judged) || "";
}

const mean = (numbers: number[]) => numbers.reduce((a, b) => a + b, 0) / numbers.length;
const spread = (numbers: number[]) => Math.max(...numbers) - Math.min(...numbers);

export function meanOf(row: Row, column: Column, metric: string, view: View): { mean: Score; n: number } | null {
  const scores = shotsOf(row, column).flatMap((shot) => scoreOf(column, shot.id, metric, view) ?? []);
  const [first] = scores;
  return first ? { mean: { ...first, value: mean(scores.map((s) => s.value)) }, n: scores.length } : null;
}

const meanValue = (row: Row, column: Column, metric: string, view: View) =>
  meanOf(row, column, metric, view)?.mean.value ?? null;

/** Numbers of different evaluators are not compared: the gap is the widest one within an evaluator. */
function gapOf(row: Row, columns: Column[], metric: string, view: View): number | null {
  const by = new Map<string, number[]>();
  for (const column of columns) {
    const found = meanOf(row, column, metric, view)?.mean;
    if (found) by.set(found.evaluator, [...(by.get(found.evaluator) ?? []), found.value]);
  }
  const gaps = [...by.values()].filter((values) => values.length > 1).map(spread);
  return gaps.length ? Math.max(...gaps) : null;
}

/** The distance between judges of the same image, as a share of their scales. */
function quarrelOf(row: Row, columns: Column[], metric: string): number | null {
  const gaps = columns.flatMap((column) =>
    shotsOf(row, column).flatMap((shot) => {
      const shares = (column.judgings ?? []).flatMap((one) => {
        const score = valueIn(one, shot.id, metric) ?? valueIn(one, shot.id, one.items.metrics[0] ?? "");
        return score ? [score.value / score.scale] : [];
      });
      return shares.length > 1 ? [spread(shares)] : [];
    }),
  );
  return gaps.length ? Math.max(...gaps) : null;
}

/** The orders that the shown columns allow. */
export function orders(columns: Column[], view: View): { plain: string[]; columns: Column[] } {
  const scored = columns.filter((column) => column.judgings?.some((one) => one.items.metrics.length));
  if (!scored.length) return { plain: ["order"], columns: [] };
  const evaluators = new Set(scored.map((column) => judgingOf(column, view)?.evaluator));
  const plain = ["order"];
  // an average over models needs numbers of one evaluator
  if (evaluators.size < 2) plain.push("low", "high");
  if (columns.length > 1) plain.push("gap");
  if (columns.some((column) => (column.judgings?.length ?? 0) > 1)) plain.push("judges");
  return { plain, columns: columns.length > 1 ? scored : [] };
}

/** The top of the scale of all shown scores; 100 (percent) if the scales differ. */
export function unitOf(columns: Column[], metric: string, view: View): { unit: number; percent: boolean } {
  const scales = new Set(
    columns.flatMap((column) => {
      const items = judgingOf(column, view)?.items;
      const number = items?.metrics.indexOf(metric) ?? -1;
      return items && number >= 0 ? [items.scales[number] ?? 1] : [];
    }),
  );
  const [only] = scales;
  return scales.size === 1 && only ? { unit: only, percent: false } : { unit: 100, percent: true };
}

function sortKey(row: Row, columns: Column[], metric: string, view: View): number | null {
  const [how, ...rest] = view.sort.split(":");
  const key = rest.join(":");
  if (key) {
    const column = columns.find((one) => one.key === key);
    const value = column ? meanValue(row, column, metric, view) : null;
    return value === null ? null : how === "high" ? -value : value;
  }
  if (how === "gap" || how === "judges") {
    const gap = how === "gap" ? gapOf(row, columns, metric, view) : quarrelOf(row, columns, metric);
    return gap === null ? null : -gap;
  }
  const means = columns.flatMap((column) => meanValue(row, column, metric, view) ?? []);
  if (!means.length) return null;
  return how === "high" ? -mean(means) : mean(means);
}

function fits(row: Row, columns: Column[], metric: string, view: View): boolean {
  const query = view.q.trim().toLowerCase();
  // a short number is part of nearly every id, so only a longer part of an id counts
  const named = query.length > 3 && row.items.some((id) => id.toLowerCase().includes(query));
  if (!named && !query.split(/\s+/).every((term) => row.text.includes(term))) return false;
  if (!Object.entries(view.keys).every(([name, value]) => slug(row.keys[name] ?? "") === value)) return false;
  if (!view.status && !view.low && !view.high) return true;
  const { unit } = unitOf(columns, metric, view);
  const low = view.low ? Number(view.low) : Number.NEGATIVE_INFINITY;
  const high = view.high ? Number(view.high) : Number.POSITIVE_INFINITY;
  return columns.some((column) =>
    shotsOf(row, column).some((shot) => {
      if (view.status && stateOf(column, shot, view) !== view.status) return false;
      if (!view.low && !view.high) return true;
      const score = scoreOf(column, shot.id, metric, view);
      if (!score) return false;
      const value = (score.value / score.scale) * unit;
      return value >= low - 1e-9 && value <= high + 1e-9;
    }),
  );
}

/** The rows that fit the view's filters, in its order. */
export function arranged(table: Table, columns: Column[], metric: string, view: View): Row[] {
  const rows = table.rows.filter((row) => fits(row, columns, metric, view));
  const { plain, columns: own } = orders(columns, view);
  const offered = plain.includes(view.sort) || own.some((c) => [`low:${c.key}`, `high:${c.key}`].includes(view.sort));
  if (view.sort === "order" || !offered) return rows;
  const keyed = rows.map((row) => [sortKey(row, columns, metric, view), row] as const);
  keyed.sort(([x, a], [y, b]) => {
    if (x === null || y === null) return Number(x === null) - Number(y === null) || a.order - b.order;
    return x - y || a.order - b.order;
  });
  return keyed.map(([, row]) => row);
}

/** The address of the full image at a path below a cell's root; "" if it is not published. */
function whole(index: Index, root: number, path: string): string {
  const base = index.roots[root];
  return base && path ? `${base}/${path}` : "";
}

export function fileOf(index: Index, column: Column, shot: Shot): string {
  const cell = cellAt(index, column.cells[0] as number);
  return shot.file ? whole(index, cell.root, `${cell.path}/${shot.file}`) : "";
}

export function sourceFile(index: Index, input: Input): string {
  return input.path && input.cell !== undefined ? whole(index, cellAt(index, input.cell).root, input.path) : "";
}
