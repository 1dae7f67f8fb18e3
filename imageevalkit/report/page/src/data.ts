// The data that imageevalkit/report/site.py writes and this page reads. A test compares both sides with this file.
//
// A part is a file data/<name>.js with one call, reportPart("<name>", <JSON>): a script may be loaded from file://, a fetch may
// not. In the single file report.html each part is a <script type="application/json" data-part="<name>"> instead, and pictures
// are the part "pictures" (path → data: URI).

/** Part "index", in the page itself: all data except items. */
export interface Index {
  /** The time of the report, ISO 8601. */
  made: string;
  version: string;
  /** The paths from the page to the output folders with the full images, by number in `Cell.root`; "": not published. */
  roots: string[];
  cells: Cell[];
  boards: Board[];
  /** The models in the order of display. */
  benchmarks: Benchmark[];
  models: Model[];
  mean: Mean;
  curves: Curve[];
  relations: RelationMap[];
  /** The kinds of relations in the order of the legend (imageevalkit.extras.relations.KINDS): `name` → its appearance. */
  kinds: Record<string, { label: string; colour: string; mark: string }>;
  comparisons: { name: string; href: string }[];
  votes: VoteReport | null;
  /** A line for each file that could not be read. */
  unreadable: string[];
}

export interface Model {
  name: string;
  /** The training run and step in `run@step`. */
  run?: string;
  step?: number;
  /** The mean over `Index.mean.of` of complete headline scores as shares of their scales; null if the model has not all. */
  overall: number | null;
}

/** The benchmarks of `Model.overall`. */
export interface Mean {
  /** The labels of boards or columns. Empty: none counts, and models are in the order of the first column. */
  of: string[];
  /** Benchmark@evaluator → the reason why it does not count. */
  leftOut: Record<string, string>;
}

export interface Benchmark {
  name: string;
  /** The name that papers use: "GenEval 2". */
  title: string;
  /** "t2i" or "edit". */
  task: string;
  /** The numbers of `Index.cells` with items for the gallery. */
  cells: number[];
  /** The number of prompts over all cells; 0: nothing to show. */
  prompts: number;
}

/** One result of one cell, or a cell without one. */
export interface Cell {
  model: string;
  benchmark: string;
  /** The number in `Index.boards`; null: no result. */
  board: number | null;
  /** The reason why there is no result, or why its headline is withheld. */
  problem: string;
  withheld: boolean;
  /** The state on the leaderboard: incomplete, withheld, stale, partial …; "" for a complete result. */
  state: string;
  notes: string[];
  coverage: Coverage | null;
  /** The figures by metric of the board; a withheld result has none. */
  figures: Record<string, Figure>;
  treatment: string;
  /** Label → value: the evaluator's details and the provenance, as text. */
  evaluator: Record<string, string>;
  provenance: Record<string, string>;
  cost: Cost;
  /** The failures by class: outcome (refused, failed, unparsed …), text, count, and up to 3 ids of items. */
  failures: { outcome: string; error: string; count: number; items: string[] }[];
  /** The count of items by outcome (generated, refused …), for a cell without a result. */
  outcomes?: Record<string, number>;
  /** The folder of the parts "cells/<folder>/items" and "cells/<folder>/more-<k>"; "": no items. */
  folder: string;
  /** The number in `Index.roots`, and the URL-quoted folder of the cell below it. */
  root: number;
  path: string;
  /** The most frequent values of the judge's replies with their counts; "" stands for all others. */
  words?: Word[];
}

export interface Word {
  value: string;
  count: number;
}

export interface Coverage {
  expected: number;
  judged: number;
  /** Name → count of items that are not judged (unparsed, judge_failed, refused, failed, blank, corrupt …), without zeros. */
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
  /** The number of items after which the run stopped early; 0: it did not. */
  asked: number;
  rewriter: string;
  /** The heading of the leaderboard's column, without a metric. */
  label: string;
  headline: string[];
  /** The benchmark's own breakdowns in order: a name ("" for the first) and its metrics, without headline metrics. */
  breakdowns: { name: string; metrics: string[] }[];
  /** The smallest difference that these items show between two models, by headline metric, on its scale. */
  smallest: Record<string, number>;
  /** The tests of each pair of models by each headline metric; empty for more than 12 models. */
  tests: Test[];
}

/** The paired test of two models. */
export interface Test {
  metric: string;
  first: string;
  second: string;
  /** `first` minus `second`. */
  difference: number;
  /** p by Holm's method over all pairs of the board. */
  p: number | null;
  /** The 95 % interval of the difference. */
  low: number | null;
  high: number | null;
}

export interface Figure {
  value: number | null;
  /** The value as shown everywhere, or a state if there is no value. */
  text: string;
  /** "±0.01", "[0.96, 0.98]" or "". */
  interval: string;
  low: number | null;
  high: number | null;
  n: number;
  scale: number;
  /** Whether the figure does not differ significantly from the best of the board. */
  best?: boolean;
  /** The letters of the rank groups: models with a common letter do not differ significantly. */
  group?: string;
  /** A remark on a number that does not cover every item. */
  remark?: string;
  /** The note that the judge has drifted. */
  drift?: string;
  /** The reason why a value has no interval. */
  noInterval?: string;
}

export interface Curve {
  run: string;
  board: number;
  metric: string;
  /** The points by step. `told`: whether the paired test finds a difference from the point before. */
  points: { step: number; cell: number; told: boolean | null }[];
}

/** Trade-offs of the metrics of one cell (imageevalkit/relations). */
export interface RelationMap {
  cell: number;
  metrics: string[];
  means: Record<string, number>;
  correlation: string;
  /** The settings of the relations: name → value. */
  thresholds: Record<string, number>;
  pairs: {
    /** The row and the column of the field; `kind` and `mark` refer to this order. */
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
    /** The shares of items that are high, or low, in both. Of the others: how many are above and below their line. */
    synergy: number;
    bottleneck: number;
    above: number;
    below: number;
    /** Whether the tilt exists only because points on the line count as below it. */
    onLine?: boolean;
    /** The most frequent other relation of the resamples, in words, and its share. */
    next?: [string, number];
  }[];
  /** The path of the picture of all pairs, from the page (in the part "pictures" of a single file). */
  scatter?: string;
  /** Links to files: map, scatter, codes. */
  files: { name: string; href: string }[];
}

export interface VoteReport {
  votes: number;
  files: string[];
  /** Strengths by Bradley–Terry on Elo's scale, best first; of one benchmark, or of all (""). */
  tables: {
    benchmark: string;
    rows: { model: string; rating: number; low: number; high: number; wins: number; losses: number; ties: number }[];
  }[];
  /** How often each judge and the voters prefer the same model. */
  judges: {
    evaluator: string;
    benchmark: string;
    metric: string;
    agreement: number;
    low: number;
    high: number;
    n: number;
  }[];
  /** A line for each remark: a model that won all its votes, models that no vote connects with others … */
  notes: string[];
}

/** Part "prompts/<number of benchmark>". */
export interface Prompts {
  /** The prompts in the benchmark's order. */
  rows: {
    prompt: string;
    /** The ids of its items (repetitions). */
    items: string[];
    keys: Record<string, string>;
    /** Input images of an edit: path of the preview ("": none), and of the copy below the root of `cell`. `of`: a model
     * that received the image, if the models received different images. */
    inputs?: { preview: string; path?: string; cell?: number; of?: string }[];
  }[];
  /** Filters: key → its values in order. */
  filters: Record<string, string[]>;
}

/** Part "cells/<folder>/items": the data with which the gallery filters, sorts and draws. Arrays are by item number. */
export interface Items {
  /** The evaluator of `values`; "" or absent: none. */
  evaluator?: string;
  /** The metrics of `values`, with the top of each scale. */
  metrics: string[];
  scales: number[];
  /** The number of items in one file of more. */
  size: number;
  items: {
    id: string;
    /** generated, refused, failed, blank, corrupt … */
    status: string;
    /** judged, unparsed, judge_failed, stale, "" */
    judged?: string;
    values?: (number | null)[];
    /** The reason for a missing picture: the error's text, else its class; at most 200 characters. */
    remark?: string;
    seed?: number;
    seedIgnored?: boolean;
    /** The URL-quoted path of the preview (WebP) from the page; "" or absent: none. */
    preview?: string;
    /** The URL-quoted path of the full image below the cell's folder. */
    file?: string;
    width?: number;
    height?: number;
  }[];
}

/** Part "cells/<folder>/more-<k>": the items from number k·size on, in the same order. */
export interface More {
  items: {
    error?: [string, string];
    reason?: string;
    /** The rewriter of the prompt, and the prompt that the model received. */
    rewritten?: [string, string];
    facts: Record<string, string>;
    detail: Record<string, string>;
    /** The judge's answers and measurements, wrong ones first. */
    answers: Answer[];
    /** The shell command that generates this image again. */
    command: string;
  }[];
}

export interface Answer {
  /** Name of the question, as the benchmark has it. */
  question: string;
  /** The text of the question, if it is on record. */
  text?: string;
  /** The raw reply. */
  reply: string;
  /** The value read from the reply, as text. */
  value?: string;
  /** 0 … 1 if its score is known: below 0.5 is wrong. */
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

/** The part with this name, loaded once. Rejects with a message for readers if it cannot be loaded. */
export function part<N extends keyof Parts & string>(name: N): Promise<Parts[N]> {
  let found = asked.get(name);
  if (!found) {
    found = load(name);
    asked.set(name, found);
    found.catch(() => asked.delete(name)); // another try may succeed
  }
  return found as Promise<Parts[N]>;
}

async function load(name: string): Promise<unknown> {
  const inside = document.querySelector(`script[data-part="${CSS.escape(name)}"]`);
  if (inside) {
    const data: unknown = JSON.parse(inside.textContent ?? "");
    inside.remove(); // frees its megabytes of text
    return data;
  }
  await new Promise<void>((done, fail) => {
    const script = document.createElement("script");
    script.src = `data/${name.split("/").map(encodeURIComponent).join("/")}.js`;
    script.onload = () => {
      script.remove(); // its name may reveal a model to a blind voter
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

/** The address of the picture at `path`: the path itself, or its data in a single file. */
export function picture(path: string): string {
  if (!pictures) {
    const inside = document.querySelector('script[data-part="pictures"]');
    pictures = inside ? (JSON.parse(inside.textContent ?? "{}") as Record<string, string>) : {};
  }
  return pictures[path] ?? path;
}
