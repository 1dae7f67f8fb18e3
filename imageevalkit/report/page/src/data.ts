// What imageevalkit/report/site.py writes and this page reads. Both sides are held to this file by a test.
//
// A part is a file data/<name>.js with one call, reportPart("<name>", <JSON>): a script may be loaded from file://, a fetch may
// not. In the single file report.html each part is a <script type="application/json" data-part="<name>"> instead, and pictures
// are the part "pictures" (path → data: URI).

/** Part "index", in the page itself: everything but items. */
export interface Index {
  /** ISO 8601, when the report was made. */
  made: string;
  version: string;
  /** From the page to the output folders that hold whole images, by number in `Cell.root`; "" is not there (published). */
  roots: string[];
  cells: Cell[];
  boards: Board[];
  /** In the order to show them. */
  benchmarks: Benchmark[];
  models: Model[];
  mean: Mean;
  curves: Curve[];
  relations: RelationMap[];
  /** Kinds of relations in the order of the legend (imageevalkit.extras.relations.KINDS): `name` → how it is shown. */
  kinds: Record<string, { label: string; colour: string; mark: string }>;
  comparisons: { name: string; href: string }[];
  votes: VoteReport | null;
  /** One line each, of what could not be read. */
  unreadable: string[];
}

export interface Model {
  name: string;
  /** Of `run@step`. */
  run?: string;
  step?: number;
  /** The mean over `Index.mean.of` of what a whole headline score is of its scale; null of a model that lacks one. */
  overall: number | null;
}

/** Over which benchmarks `Model.overall` is. */
export interface Mean {
  /** Labels of boards or columns; empty: none counts, and models are in the order of the first column. */
  of: string[];
  /** Benchmark@evaluator → why it does not count. */
  leftOut: Record<string, string>;
}

export interface Benchmark {
  name: string;
  /** As papers write it: "GenEval 2". */
  title: string;
  /** "t2i" or "edit". */
  task: string;
  /** Numbers of `Index.cells` with items for the gallery. */
  cells: number[];
  /** Prompts over all cells; 0: nothing to show. */
  prompts: number;
}

/** One result of one cell, or a cell without one. */
export interface Cell {
  model: string;
  benchmark: string;
  /** Number in `Index.boards`; null: no result. */
  board: number | null;
  /** Why there is no result, or why its headline is withheld. */
  problem: string;
  withheld: boolean;
  /** incomplete, withheld, stale, partial … as the leaderboard has it; "" of a whole one. */
  state: string;
  notes: string[];
  coverage: Coverage | null;
  /** By metric of the board; a withheld result has none. */
  figures: Record<string, Figure>;
  treatment: string;
  /** Label → value: evaluator's details and provenance, as text. */
  evaluator: Record<string, string>;
  provenance: Record<string, string>;
  cost: Cost;
  /** Failures by class: outcome (refused, failed, unparsed …), its text, how many, and up to 3 ids of items. */
  failures: { outcome: string; error: string; count: number; items: string[] }[];
  /** How many items so far are of each outcome (generated, refused …); of a cell without a result. */
  outcomes?: Record<string, number>;
  /** Number of files of items: parts "cells/<folder>/items" and "cells/<folder>/more-<k>"; "" has no items. */
  folder: string;
  /** In `Index.roots`; and the URL-quoted folder of the cell below it. */
  root: number;
  path: string;
  /** What was read of the judge's replies most often, and how often; "" is any other. */
  words?: Word[];
}

export interface Word {
  value: string;
  count: number;
}

export interface Coverage {
  expected: number;
  judged: number;
  /** Name → count, of what is not judged (unparsed, judge_failed, refused, failed, blank, corrupt …), none of 0. */
  missing: Record<string, number>;
  flat: number;
}

export interface Cost {
  generation_usd: number | null;
  judge_usd: number | null;
  /** Mean seconds from the request or start of an image to its end. */
  seconds_per_image: number | null;
  usd_per_image: number | null;
}

export interface Board {
  benchmark: string;
  version: string;
  evaluator: string;
  official: boolean;
  limit: number;
  /** Stopped early, after so many items; 0: not. */
  asked: number;
  rewriter: string;
  /** As the leaderboard's column, without a metric. */
  label: string;
  headline: string[];
  /** Breakdowns of the benchmark's own, in order: a name ("" is the first) and its metrics. A headline is in none. */
  breakdowns: { name: string; metrics: string[] }[];
  /** The smallest difference two models can show with these items, by headline metric, on its scale. */
  smallest: Record<string, number>;
  /** Of each pair of models by each headline metric; empty for more than 12 models. */
  tests: Test[];
}

/** The paired test of two models. */
export interface Test {
  metric: string;
  first: string;
  second: string;
  /** `first` minus `second`. */
  difference: number;
  /** By Holm's method over all pairs of the board. */
  p: number | null;
  /** The 95 % interval of the difference. */
  low: number | null;
  high: number | null;
}

export interface Figure {
  value: number | null;
  /** As shown everywhere, or a word where there is no value. */
  text: string;
  /** "±0.01", "[0.96, 0.98]" or "". */
  interval: string;
  low: number | null;
  high: number | null;
  n: number;
  scale: number;
  /** Cannot be told from the best of the board. */
  best?: boolean;
  /** Letters: models with one in common cannot be told apart. */
  group?: string;
  /** Qualifies a number that is not of every item. */
  remark?: string;
  /** The note that the judge has drifted. */
  drift?: string;
  /** Why a value has no interval. */
  noInterval?: string;
}

export interface Curve {
  run: string;
  board: number;
  metric: string;
  /** By step. `told`: differs from the point before by the paired test. */
  points: { step: number; cell: number; told: boolean | null }[];
}

/** Trade-offs of the metrics of one cell (imageevalkit/relations). */
export interface RelationMap {
  cell: number;
  metrics: string[];
  means: Record<string, number>;
  correlation: string;
  /** As it was told apart: name → value. */
  thresholds: Record<string, number>;
  pairs: {
    /** Row and column of the field: `kind` and `mark` are of this order. */
    first: string;
    second: string;
    /** A name in `kinds`. */
    kind: string;
    /** In words: "tilt: A dominates B". */
    label: string;
    certainty: number | null;
    n: number;
    means: [number, number];
    correlation: number | null;
    /** Shares of items that are high, or low, in both; of the others, how many lie above and below their line. */
    synergy: number;
    bottleneck: number;
    above: number;
    below: number;
    /** A tilt only because points on the line count as below. */
    onLine?: boolean;
    /** The relation that most resamples have but this one, in words, and their share. */
    next?: [string, number];
  }[];
  /** Path of the picture of all pairs, from the page (in the part "pictures" of a single file). */
  scatter?: string;
  /** Links to files: map, scatter, codes. */
  files: { name: string; href: string }[];
}

export interface VoteReport {
  votes: number;
  files: string[];
  /** Strengths by Bradley–Terry on Elo's scale, best first; of one benchmark, or of all ("" ). */
  tables: {
    benchmark: string;
    rows: { model: string; rating: number; low: number; high: number; wins: number; losses: number; ties: number }[];
  }[];
  /** How often each judge prefers whom voters prefer. */
  judges: {
    evaluator: string;
    benchmark: string;
    metric: string;
    agreement: number;
    low: number;
    high: number;
    n: number;
  }[];
  /** One line each: a model that won all its votes, models never compared with others … */
  notes: string[];
}

/** Part "prompts/<number of benchmark>". */
export interface Prompts {
  /** In the benchmark's order. */
  rows: {
    prompt: string;
    /** Ids of its items (repetitions). */
    items: string[];
    keys: Record<string, string>;
    /** Input images of an edit: path of the preview ("": none), and of the copy below the root of `cell`. `of`: a model
     * that was shown it, where not all were shown the same. */
    inputs?: { preview: string; path?: string; cell?: number; of?: string }[];
  }[];
  /** Filters: key → its values in order. */
  filters: Record<string, string[]>;
}

/** Part "cells/<folder>/items": what the gallery needs to filter, sort and draw. Arrays go by number. */
export interface Items {
  /** Who gave `values`; "" or absent: nobody. */
  evaluator?: string;
  /** Metrics of `values`, with the top of each scale. */
  metrics: string[];
  scales: number[];
  /** Items in one file of more. */
  size: number;
  items: {
    id: string;
    /** generated, refused, failed, blank, corrupt … */
    status: string;
    /** judged, unparsed, judge_failed, stale, "" */
    judged?: string;
    values?: (number | null)[];
    /** Why there is no picture: the error's text, else its class; at most 200 characters. */
    remark?: string;
    seed?: number;
    seedIgnored?: boolean;
    /** URL-quoted path of the preview (WebP) from the page; "" or absent: none. */
    preview?: string;
    /** URL-quoted path of the whole image below the cell's folder. */
    file?: string;
    width?: number;
    height?: number;
  }[];
}

/** Part "cells/<folder>/more-<k>": of items k·size … in the same order. */
export interface More {
  items: {
    error?: [string, string];
    reason?: string;
    /** Who wrote the prompt anew, and what the model was shown. */
    rewritten?: [string, string];
    facts: Record<string, string>;
    detail: Record<string, string>;
    /** Judge's answers and measurements, wrong ones first. */
    answers: Answer[];
    /** Shell command that makes this one image again. */
    command: string;
  }[];
}

export interface Answer {
  /** Name of the question, as the benchmark has it. */
  question: string;
  /** What was asked, where it is on record. */
  text?: string;
  /** The raw reply. */
  reply: string;
  /** The value read of it, as text. */
  value?: string;
  /** 0 … 1 where its score is known: below 0.5 is wrong. */
  score?: number;
  status: "ok" | "unparsed" | "failed";
  who: string;
}

type Parts = {
  index: Index;
  [name: `prompts/${number}`]: Prompts;
  [name: `cells/${string}/items`]: Items;
  [name: `cells/${string}/more-${number}`]: More;
};

declare global {
  interface Window {
    reportPart: (name: string, data: unknown) => void;
  }
}

const loaded = new Map<string, unknown>();
const asked = new Map<string, Promise<unknown>>();

window.reportPart = (name, data) => loaded.set(name, data);

/** The part of that name, loaded once. Rejects with a message for readers where it cannot be had. */
export function part<N extends keyof Parts & string>(name: N): Promise<Parts[N]> {
  let found = asked.get(name);
  if (!found) {
    found = load(name);
    asked.set(name, found);
    found.catch(() => asked.delete(name)); // another try may do
  }
  return found as Promise<Parts[N]>;
}

async function load(name: string): Promise<unknown> {
  const inside = document.querySelector(`script[data-part="${CSS.escape(name)}"]`);
  if (inside) {
    const data: unknown = JSON.parse(inside.textContent ?? "");
    inside.remove(); // its megabytes of text are not needed any more
    return data;
  }
  await new Promise<void>((done, fail) => {
    const script = document.createElement("script");
    script.src = `data/${name.split("/").map(encodeURIComponent).join("/")}.js`;
    script.onload = () => {
      script.remove(); // its name may tell a model to who votes blind
      done();
    };
    script.onerror = () => fail(new Error(`data/${name}.js cannot be loaded`));
    document.head.append(script);
  });
  if (!loaded.has(name)) throw new Error(`data/${name}.js holds no ${name}`);
  const data = loaded.get(name);
  loaded.delete(name);
  return data;
}

let pictures: Record<string, string> | undefined;

/** Where the picture at `path` is had: itself, or its data in a single file. */
export function picture(path: string): string {
  if (!pictures) {
    const inside = document.querySelector('script[data-part="pictures"]');
    pictures = inside ? (JSON.parse(inside.textContent ?? "{}") as Record<string, string>) : {};
  }
  return pictures[path] ?? path;
}
