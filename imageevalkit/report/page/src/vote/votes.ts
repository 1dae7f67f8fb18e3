// Votes: stored in the browser, saved to and read from files; and the choice of the next pair.
import { type Index, part } from "../data";
import { type Column, columnsOf, type Row, type Shot } from "../gallery/table";

export const FORMAT = "imageevalkit-votes/1";

export interface Vote {
  benchmark: string;
  item: string;
  left: string;
  right: string;
  winner: "left" | "right" | "tie";
  /** ISO 8601. */
  time: string;
  seconds: number;
}

export interface Votes {
  format: typeof FORMAT;
  voter: string;
  votes: Vote[];
}

// other reports that the browser opened from files share its storage
const PLACE = `imageevalkit-votes:${location.pathname}`;

export function keptVotes(): Votes {
  try {
    const found = read(localStorage.getItem(PLACE) ?? "");
    if (typeof found === "object") return found;
  } catch {
    // storage is refused: the votes can still be saved to a file
  }
  return { format: FORMAT, voter: crypto.getRandomValues(new Uint32Array(1))[0]?.toString(36) ?? "", votes: [] };
}

/** Replaces `before` with `next`, including the changes of other tabs; returns whether the storage accepted it. */
export function keepVotes(before: Votes, next: Votes): [Votes, boolean] {
  let all = next;
  try {
    const kept = read(localStorage.getItem(PLACE) ?? "");
    if (typeof kept === "object") {
      const had = new Set(before.votes.map(voteName));
      const stored = new Set(kept.votes.map(voteName));
      const theirs = kept.votes.filter((vote) => !had.has(voteName(vote)));
      const mine = next.votes.filter((vote) => !had.has(voteName(vote)) || stored.has(voteName(vote)));
      const voter = next.voter === before.voter ? kept.voter : next.voter;
      all = { ...next, voter, votes: merged(theirs, mine) }; // the votes of this tab stay last, for undo
    }
    localStorage.setItem(PLACE, JSON.stringify(all));
    return [all, true];
  } catch {
    return [all, false];
  }
}

/** The votes in a file; for an invalid file the number of its first invalid vote, or "" if the rest is invalid. */
export function read(text: string): Votes | string {
  let data: Partial<Votes>;
  try {
    data = JSON.parse(text);
  } catch {
    return "";
  }
  if (data?.format !== FORMAT || typeof data.voter !== "string" || !Array.isArray(data.votes)) return "";
  const wrong = data.votes.findIndex((vote) => !isVote(vote));
  return wrong < 0 ? (data as Votes) : String(wrong + 1);
}

function isVote(vote: Partial<Vote> | null): boolean {
  if (!vote || typeof vote !== "object") return false;
  const { benchmark, item, left, right, time, winner, seconds } = vote;
  return (
    [benchmark, item, left, right, time].every((text) => typeof text === "string") &&
    (winner === "left" || winner === "right" || winner === "tie") &&
    typeof seconds === "number"
  );
}

const voteName = (v: Vote) => JSON.stringify([v.time, v.benchmark, v.item, v.left, v.right]);

/** The votes of both; votes of the same moment on the same images count once. */
export function merged(mine: Vote[], more: Vote[]): Vote[] {
  const known = new Set(mine.map(voteName));
  return [...mine, ...more.filter((vote) => !known.has(voteName(vote)))];
}

export function download(votes: Votes): void {
  const link = document.createElement("a");
  link.href = URL.createObjectURL(new Blob([`${JSON.stringify(votes, null, 1)}\n`], { type: "application/json" }));
  link.download = `votes-${votes.voter.replace(/[^\p{L}\p{N}_-]+/gu, "_") || "voter"}.json`;
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 10_000);
}

/** FNV-1a: a number from a text, the same in every browser. */
export function hashed(text: string): number {
  let hash = 0x811c9dc5;
  for (let i = 0; i < text.length; i++) hash = Math.imul(hash ^ text.charCodeAt(i), 0x01000193);
  hash ^= hash >>> 15; // the low bits alone are not random enough
  hash = Math.imul(hash, 0x2c1b3c6d);
  return (hash ^ (hash >>> 12)) >>> 0;
}

/** Two images of one prompt; the voter's name decides `left` and `right`. */
export interface Pair {
  benchmark: string;
  row: Row;
  left: { column: Column; shot: Shot };
  right: { column: Column; shot: Shot };
}

interface Match {
  benchmark: number;
  models: [Column, Column];
}

const pairName = (benchmark: string, a: string, b: string) => JSON.stringify([benchmark, ...[a, b].sort()]);
export const nameOf = (index: Index, column: Column) => index.cells[column.cells[0] as number]?.model ?? column.key;

/** Finds pairs of two of `models` on `benchmarks`, least compared first. */
export class Chooser {
  private matches: Match[];
  private skipped = new Set<string>();

  constructor(
    private index: Index,
    private voter: string,
    benchmarks: string[],
    models: string[],
  ) {
    this.matches = index.benchmarks.flatMap(({ name }, benchmark) => {
      if (!benchmarks.includes(name)) return [];
      const columns = models.flatMap((model) => {
        const found = columnsOf(index, benchmark).find((column) => nameOf(index, column) === model);
        return found ? [found] : [];
      });
      return columns.flatMap((a, n) => columns.slice(n + 1).map((b): Match => ({ benchmark, models: [a, b] })));
    });
  }

  skip(pair: Pair): void {
    this.skipped.add(this.nameIn(pair.benchmark, pair.left.shot.id, pair.left.column, pair.right.column));
  }

  private nameIn(benchmark: string, item: string, a: Column, b: Column): string {
    return `${item} ${pairName(benchmark, nameOf(this.index, a), nameOf(this.index, b))}`;
  }

  /** The next pair that is not in `votes`; null if none is left. */
  async next(votes: Vote[]): Promise<Pair | null> {
    const ofMatch = new Map<string, number>();
    const ofItem = new Map<string, number>();
    const done = new Set<string>(this.skipped);
    const count = (map: Map<string, number>, key: string) => map.set(key, (map.get(key) ?? 0) + 1);
    for (const { benchmark, item, left, right } of votes) {
      const match = pairName(benchmark, left, right);
      count(ofMatch, match);
      count(ofItem, `${benchmark} ${item}`);
      done.add(`${item} ${match}`);
    }
    const name = ({ benchmark, models: [a, b] }: Match) =>
      pairName(this.index.benchmarks[benchmark]?.name ?? "", nameOf(this.index, a), nameOf(this.index, b));
    const byCount = (keys: (text: string) => [number, string]) => (a: string, b: string) => {
      const [m, x] = keys(a);
      const [n, y] = keys(b);
      return m - n || hashed(x) - hashed(y);
    };
    const order = byCount((text) => [ofMatch.get(text) ?? 0, `${this.voter} ${votes.length} ${text}`]);
    const left = [...this.matches].sort((a, b) => order(name(a), name(b)));
    for (const match of left) {
      const benchmark = this.index.benchmarks[match.benchmark]?.name ?? "";
      const shots = await this.shots(match);
      const [a, b] = match.models;
      const open = [...shots.keys()].filter((item) => !done.has(this.nameIn(benchmark, item, a, b)));
      const [item] = open.sort(byCount((id) => [ofItem.get(`${benchmark} ${id}`) ?? 0, `${this.voter} ${id}`]));
      const found = item === undefined ? undefined : shots.get(item);
      if (!found) {
        this.matches = this.matches.filter((one) => one !== match); // none of it is left
        continue;
      }
      const sides = [
        { column: a, shot: found.shots[0] },
        { column: b, shot: found.shots[1] },
      ] as const;
      const turned = hashed(`${this.voter} ${item} ${name(match)}`) & 1;
      const [first, second] = turned ? [sides[1], sides[0]] : sides;
      return { benchmark, row: found.row, left: first, right: second };
    }
    return null;
  }

  /** The items of which both models have an image. */
  private async shots({ benchmark, models }: Match): Promise<Map<string, { row: Row; shots: [Shot, Shot] }>> {
    const folder = (column: Column) => this.index.cells[column.cells[0] as number]?.folder ?? "";
    const [prompts, ...items] = await Promise.all([
      part(`prompts/${benchmark}`),
      ...models.map((column) => part(`cells/${folder(column)}/items`)),
    ]);
    const [a, b] = items.map(
      (one) => new Map(one.items.filter((shot) => shot.status === "generated").map((shot) => [shot.id, shot])),
    );
    const found = new Map<string, { row: Row; shots: [Shot, Shot] }>();
    prompts.rows.forEach((row, order) => {
      for (const id of row.items) {
        const [x, y] = [a?.get(id), b?.get(id)];
        const full = { ...row, order, text: "", inputs: row.inputs ?? [] };
        if (x && y) found.set(id, { row: full, shots: [x, y] });
      }
    });
    return found;
  }
}
