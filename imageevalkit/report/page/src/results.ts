// Queries of pages to the index.
import type { Board, Cell, Figure, Index } from "./data";
import { slug } from "./route";

/** A headline metric of a board: a column of the leaderboard. `metric` is "" if all results are withheld. */
export interface Column {
  board: Board;
  number: number;
  metric: string;
  /** The unique name: "wise@gpt-4o/openai/official/1a2b3c4d · overall". */
  label: string;
  /** The spoken name: "WISE · gpt-4o". */
  title: string;
}

/** The columns of the leaderboard. */
export function columnsOf(index: Index): Column[] {
  const titles = titlesOf(index);
  return index.boards.flatMap((board, number) =>
    (board.headline.length ? board.headline : [""]).map((metric) => ({
      board,
      number,
      metric,
      label: named(board, metric),
      title: titles[number] as string,
    })),
  );
}

/**
 * The spoken name of each board, by number: "WISE · gpt-4o". Where two boards would share a name, each has the whole id of
 * its evaluator and its version.
 */
export function titlesOf(index: Index): string[] {
  const benchmarks = new Map(index.benchmarks.map(({ name, title }) => [name, title]));
  const title = ({ benchmark, evaluator, rewriter }: Board, who: string) =>
    [benchmarks.get(benchmark) ?? benchmark, who || evaluator, rewriter && `+${rewriter}`].filter(Boolean).join(" · ");
  const short = index.boards.map((board) => title(board, board.evaluator.split("/")[0] ?? ""));
  return index.boards.map((board, n) =>
    short.filter((one) => one === short[n]).length === 1
      ? (short[n] as string)
      : `${title(board, board.evaluator)} (${board.version})`,
  );
}

/** The name of a benchmark that papers use. */
export function titleOf(index: Index, benchmark: string): string {
  return index.benchmarks.find(({ name }) => name === benchmark)?.title ?? benchmark;
}

/** A metric of a board in words: "wise@qwen2.5-vl-7b · culture". */
export function named(board: Board, metric: string): string {
  return metric ? `${board.label} · ${metric}` : board.label;
}

/** Every metric of a board, headline first. */
export function metricsOf(board: Board): string[] {
  return [...board.headline, ...board.breakdowns.flatMap((one) => one.metrics)];
}

/** The cells of a board by model. */
export function cellsOf(index: Index, board: number): Map<string, Cell> {
  return new Map(index.cells.filter((cell) => cell.board === board).map((cell) => [cell.model, cell]));
}

/** A figure as a share of its scale, from 0 to 1; null if there is no value. */
export function shareOf(figure: Figure | undefined): number | null {
  if (!figure || figure.value === null || !figure.scale) return null;
  return Math.min(1, Math.max(0, figure.value / figure.scale));
}

/** The one that an address names, or undefined. */
export function byName<T extends { name: string }>(all: T[], name: string | null | undefined): T | undefined {
  return all.find((one) => slug(one.name) === name);
}

const COLOURS = [
  "#4269d0",
  "#efb118",
  "#ff725c",
  "#3ca951",
  "#a463f2",
  "#6cc5b0",
  "#ff8ab7",
  "#9c6b4e",
  "#97bbf5",
  "#9498a0",
];
const SYMBOLS = ["circle", "rect", "triangle", "diamond", "roundRect"];

/** The appearance of a model, the same on every page. */
export function lookOf(index: Index, model: string): { colour: string; symbol: string } {
  return look(index.models.findIndex((one) => one.name === model));
}

/** The appearance of the thing with this number. */
export function look(number: number): { colour: string; symbol: string } {
  const n = Math.max(0, number);
  return {
    colour: COLOURS[n % COLOURS.length] as string,
    symbol: SYMBOLS[(n + Math.floor(n / COLOURS.length)) % SYMBOLS.length] as string,
  };
}
