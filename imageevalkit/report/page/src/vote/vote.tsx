import "../gallery/gallery.css";
import "./vote.css";
import { useEffect, useMemo, useRef, useState } from "preact/hooks";
import type { Index } from "../data";
import { Clamp, Keys } from "../gallery/common";
import { STEP, Stage, WHOLE, type Zoom, zoomed } from "../gallery/stage";
import { columnsOf } from "../gallery/table";
import { shotFrame, sourceFrame } from "../gallery/viewer";
import { Scroll } from "../parts";
import { change, choose, chosen, href, route } from "../route";
import { t } from "../words";
import {
  Chooser,
  download,
  keepVotes,
  keptVotes,
  merged,
  nameOf,
  type Pair,
  read,
  type Vote,
  type Votes,
} from "./votes";

/** Chooses, votes, or shows the result of the votes, by the `stage` in the address. */
export function VotePage({ index }: { index: Index }) {
  const [votes, setVotes] = useState(keptVotes);
  const [kept, setKept] = useState(true);
  const set = (next: Votes) => {
    const [all, could] = keepVotes(votes, next);
    setVotes(all);
    setKept(could);
    return all;
  };
  const stage = route.value.query.get("stage");
  const benchmarks = chosen("benchmarks", withImages(index));
  const models = chosen("models", modelsOf(index, benchmarks));
  const shared = { index, votes, set, benchmarks, models };
  return (
    <section class="g-vote">
      {!kept && (
        <p class="problem" role="alert">
          {t("not_kept")}
        </p>
      )}
      {stage === "vote" ? <Voting {...shared} /> : stage === "end" ? <Summary {...shared} /> : <Setup {...shared} />}
    </section>
  );
}

interface Shared {
  index: Index;
  votes: Votes;
  /** Stores the votes, and returns them with the votes of other tabs. */
  set: (votes: Votes) => Votes;
  benchmarks: string[];
  models: string[];
}

const withImages = (index: Index) => index.benchmarks.filter((one) => one.prompts).map((one) => one.name);

function modelsOf(index: Index, benchmarks: string[]): string[] {
  const found = index.benchmarks.flatMap(({ name }, number) =>
    benchmarks.includes(name) ? columnsOf(index, number).map((column) => nameOf(index, column)) : [],
  );
  return [...new Set(found)];
}

const GOAL = 50;
const goalOf = () => Math.max(1, Number(route.value.query.get("n")) || GOAL);

/** Goes to the stage as a step of the history. */
function go(stage: string): void {
  location.hash = href(["vote"], { ...Object.fromEntries(route.value.query), stage });
}

function Setup({ index, votes, set, benchmarks, models }: Shared) {
  const all = withImages(index);
  const offered = modelsOf(index, benchmarks);
  const ready = benchmarks.some((name) => modelsOf(index, [name]).filter((model) => models.includes(model)).length > 1);
  return (
    <div class="card">
      <h1>{t("vote")}</h1>
      <p class="note">{t("vote_about")}</p>
      <form
        onSubmit={(event) => {
          event.preventDefault();
          if (ready) go("vote");
        }}
      >
        <Boxes
          label={t("on_benchmarks")}
          names={all}
          chosen={benchmarks}
          onChoose={(names) => choose("benchmarks", names)}
        />
        <Boxes label={t("of_models")} names={offered} chosen={models} onChoose={(names) => choose("models", names)} />
        <div class="choices">
          <label class="choice">
            {t("voter")}
            <input
              required
              maxLength={100}
              value={votes.voter}
              onInput={(event) => set({ ...votes, voter: event.currentTarget.value })}
            />
          </label>
          <label class="choice">
            {t("how_many")}
            <input
              type="number"
              min="1"
              value={goalOf()}
              onChange={(event) => change({ n: event.currentTarget.value })}
            />
          </label>
        </div>
        <button type="submit" class="g-button g-main" disabled={!ready}>
          {t("start")}
        </button>
        {!ready && <p class="problem">{t("vote_needs")}</p>}
      </form>
      <Files votes={votes} set={set} />
    </div>
  );
}

interface BoxesProps {
  label: string;
  names: string[];
  chosen: string[];
  onChoose: (names: string[]) => void;
}

function Boxes({ label, names, chosen, onChoose }: BoxesProps) {
  return (
    <fieldset class="models">
      <legend>{label}</legend>
      {names.map((name) => (
        <label key={name}>
          <input
            type="checkbox"
            checked={chosen.includes(name)}
            onChange={({ currentTarget: { checked } }) =>
              onChoose(names.filter((one) => (one === name ? checked : chosen.includes(one))))
            }
          />
          <bdi>{name}</bdi>
        </label>
      ))}
    </fieldset>
  );
}

/** Saves votes to a file, and reads them back. */
function Files({ votes, set }: Pick<Shared, "votes" | "set">) {
  const [told, setTold] = useState<string[]>([]);
  const load = async (files: FileList | null) => {
    let { voter, votes: all } = votes;
    const lines: string[] = [];
    for (const file of files ?? []) {
      const found = read(await file.text());
      if (typeof found === "string") {
        lines.push(found ? t("bad_vote", { file: file.name, n: found }) : t("no_votes_file", { file: file.name }));
        continue;
      }
      if (!all.length) voter = found.voter;
      if (found.voter !== voter) {
        lines.push(t("other_voter", { file: file.name, voter: found.voter }));
        continue;
      }
      const more = merged(all, found.votes);
      lines.push(`${file.name}: ${t("loaded_votes", { n: more.length - all.length })}`);
      all = more;
    }
    setTold(lines);
    set({ ...votes, voter, votes: all });
  };
  return (
    <section class="g-files">
      <h2>{t("have_votes", { n: votes.votes.length })}</h2>
      <div class="g-buttons">
        <button type="button" class="g-button" disabled={!votes.votes.length} onClick={() => download(votes)}>
          {t("save_votes")}
        </button>
        <label class="g-button g-load">
          {t("load_votes")}
          <input
            type="file"
            accept=".json,application/json"
            multiple
            onChange={async ({ currentTarget: box }) => {
              await load(box.files);
              box.value = ""; // the same file may be chosen again
            }}
          />
        </label>
        <button
          type="button"
          class="g-button"
          disabled={!votes.votes.length}
          onClick={() => {
            if (confirm(t("forget_sure", { n: votes.votes.length }))) set({ ...votes, votes: [] });
          }}
        >
          {t("forget_votes")}
        </button>
      </div>
      <div role="status">
        {told.map((line) => (
          <p key={line}>{line}</p>
        ))}
      </div>
      <p class="note">{t("vote_file_about")}</p>
    </section>
  );
}

function Voting({ index, votes, set, benchmarks, models }: Shared) {
  const chooser = useMemo(
    () => new Chooser(index, votes.voter, benchmarks, models),
    [index, votes.voter, benchmarks.join(";"), models.join(";")],
  );
  const [pair, setPair] = useState<Pair | null | undefined>(undefined);
  const [problem, setProblem] = useState("");
  const [zoom, setZoom] = useState<Zoom>(WHOLE);
  const [help, setHelp] = useState(false);
  const own = useRef(0);
  const since = useRef(performance.now());
  const box = useRef<HTMLElement>(null);
  const done = own.current;
  const goal = goalOf();
  const turn = useRef(0);
  const draw = (all: Vote[]) => {
    turn.current += 1;
    const mine = turn.current;
    chooser.next(all).then(
      (next) => {
        if (mine !== turn.current) return; // a vote or an undo came later
        setPair(next);
        setZoom(WHOLE);
        since.current = performance.now();
      },
      (error: Error) => setProblem(error.message),
    );
  };
  useEffect(() => draw(votes.votes), [chooser]);
  const over = pair === null || done >= goal;

  const vote = (winner: Vote["winner"]) => {
    if (!pair || over) return;
    const one: Vote = {
      benchmark: pair.benchmark,
      item: pair.left.shot.id,
      left: nameOf(index, pair.left.column),
      right: nameOf(index, pair.right.column),
      winner,
      time: new Date().toISOString(),
      seconds: Number(((performance.now() - since.current) / 1000).toFixed(2)),
    };
    own.current += 1;
    const next = set({ ...votes, votes: [...votes.votes, one] });
    setPair(undefined); // a second press must not vote on the next pair
    draw(next.votes);
  };
  const skip = () => {
    if (!pair || over) return;
    chooser.skip(pair);
    setPair(undefined);
    draw(votes.votes);
  };
  const undo = () => {
    if (!done) return;
    own.current -= 1;
    draw(set({ ...votes, votes: votes.votes.slice(0, -1) }).votes);
  };
  const keys: Record<string, () => void> = {
    "1": () => vote("left"),
    "2": () => vote("right"),
    "0": () => vote("tie"),
    s: skip,
    u: undo,
    "+": () => setZoom((z) => zoomed(z, STEP)),
    "=": () => setZoom((z) => zoomed(z, STEP)),
    "-": () => setZoom((z) => zoomed(z, 1 / STEP)),
    "?": () => setHelp(true),
  };
  const act = useRef(keys);
  act.current = keys;
  useEffect(() => {
    const onKey = (event: KeyboardEvent) => {
      const typing = (event.target as Element).matches("input, select, textarea, dialog, dialog *");
      if (typing || event.repeat || event.ctrlKey || event.metaKey || event.altKey) return;
      const what = act.current[event.key];
      if (!what) return;
      event.preventDefault();
      what();
    };
    document.addEventListener("keydown", onKey);
    box.current?.focus({ preventScroll: true });
    return () => document.removeEventListener("keydown", onKey);
  }, []);

  // no name is in the page until the end: pictures are drawn, because their paths contain names
  const frames = pair
    ? [
        ...pair.row.inputs.map((_, n, all) => {
          const label = all.length > 1 ? `${t("source")} ${n + 1}` : t("source");
          return { ...sourceFrame(index, pair.row, n), label, alt: label }; // its own label may name a model
        }),
        ...([pair.left, pair.right] as const).map((side, n) => {
          const label = t(n ? "right" : "left");
          const frame = shotFrame(index, { row: pair.row, ...side }, label);
          return { ...frame, key: `${label} ${frame.key}`, alt: label };
        }),
      ]
    : [];
  return (
    <section class="g-voting" ref={box} tabIndex={-1} aria-label={t("vote")}>
      <header class="g-votebar">
        <h1>{t("which_better")}</h1>
        <label class="g-progress">
          <progress max={goal} value={Math.min(done, goal)} aria-label={t("progress")} />{" "}
          <span role="status">{t("done_of", { n: done, all: goal })}</span>
        </label>
        <button type="button" class="g-button" onClick={() => go("end")}>
          {t("end_voting")}
        </button>
        <button type="button" class="g-button" aria-label={t("keyboard")} onClick={() => setHelp(true)}>
          ?
        </button>
      </header>
      {problem && (
        <p class="problem" role="alert">
          {problem}
        </p>
      )}
      {over ? (
        <p class="g-empty">{t(pair === null ? "no_pair_left" : "enough")}</p>
      ) : (
        <>
          <div class="g-asked">{pair && <Clamp text={pair.row.prompt || t("no_prompt")} />}</div>
          {pair ? (
            <Stage frames={frames} mode="side" turn={0} zoom={zoom} onZoom={setZoom} blind />
          ) : (
            <p class="g-stage g-soft">{t("loading")}</p>
          )}
          <div class="g-buttons g-ballot">
            <Ballot name="1" text={t("left_better")} onClick={() => vote("left")} main />
            <Ballot name="0" text={t("tie")} onClick={() => vote("tie")} main />
            <Ballot name="2" text={t("right_better")} onClick={() => vote("right")} main />
            <Ballot name="s" text={t("skip_pair")} onClick={skip} />
            <Ballot name="u" text={t("undo")} onClick={undo} disabled={!done} />
          </div>
        </>
      )}
      {help && (
        <Keys
          keys={[
            ["1 2 0", t("help_vote")],
            ["s", t("skip_pair")],
            ["u", t("undo")],
            ["+ −", t("help_zoom")],
          ]}
          onClose={() => setHelp(false)}
        />
      )}
    </section>
  );
}

interface BallotProps {
  name: string;
  text: string;
  main?: boolean;
  disabled?: boolean;
  onClick: () => void;
}

function Ballot({ name, text, main = false, disabled = false, onClick }: BallotProps) {
  return (
    <button type="button" class={main ? "g-button g-main" : "g-button"} disabled={disabled} onClick={onClick}>
      {text} <kbd>{name}</kbd>
    </button>
  );
}

interface Tally {
  model: string;
  wins: number;
  losses: number;
  ties: number;
}

function tallies(votes: Vote[]): Tally[] {
  const by = new Map<string, Tally>();
  const of = (model: string) => {
    const found = by.get(model) ?? { model, wins: 0, losses: 0, ties: 0 };
    by.set(model, found);
    return found;
  };
  for (const { left, right, winner } of votes) {
    const [a, b] = [of(left), of(right)];
    if (winner === "tie") {
      a.ties += 1;
      b.ties += 1;
    } else {
      (winner === "left" ? a : b).wins += 1;
      (winner === "left" ? b : a).losses += 1;
    }
  }
  return [...by.values()].sort((a, b) => share(b) - share(a));
}

const share = ({ wins, losses, ties }: Tally) => (wins + ties / 2) / (wins + losses + ties);

const LAST = 100;

function Summary({ index, votes, set }: Shared) {
  const rows = tallies(votes.votes);
  return (
    <div class="card">
      <h1>{t("your_votes")}</h1>
      {rows.length > 0 && (
        <Scroll label={t("your_votes")}>
          <table>
            <thead>
              <tr>
                <th scope="col">{t("model")}</th>
                <th scope="col">{t("win_share")}</th>
                <th scope="col">{t("wins")}</th>
                <th scope="col">{t("losses")}</th>
                <th scope="col">{t("ties")}</th>
              </tr>
            </thead>
            <tbody>
              {rows.map((row) => (
                <tr key={row.model}>
                  <th scope="row">
                    <bdi>{row.model}</bdi>
                  </th>
                  <td>{(100 * share(row)).toFixed(0)} %</td>
                  <td>{row.wins}</td>
                  <td>{row.losses}</td>
                  <td>{row.ties}</td>
                </tr>
              ))}
            </tbody>
          </table>
        </Scroll>
      )}
      <Files votes={votes} set={set} />
      <p>
        <button type="button" class="g-button" onClick={() => go("vote")}>
          {t("go_on")}
        </button>{" "}
        <a href={href(["vote"])}>{t("vote")}</a> {index.votes && <a href={href(["votes"])}>{t("votes")}</a>}
      </p>
      {rows.length > 0 && (
        <>
          <h2>{t("last_votes")}</h2>
          <ul class="list">
            {votes.votes
              .slice(-LAST)
              .reverse()
              .map((vote) => (
                <li key={vote.time + vote.item}>
                  <a href={href(["gallery", vote.benchmark], { item: vote.item, model: vote.left, with: vote.right })}>
                    {vote.item}
                  </a>
                  {": "}
                  <bdi>{vote.winner === "right" ? vote.right : vote.left}</bdi> {vote.winner === "tie" ? "=" : ">"}{" "}
                  <bdi>{vote.winner === "right" ? vote.left : vote.right}</bdi>
                </li>
              ))}
          </ul>
        </>
      )}
    </div>
  );
}
