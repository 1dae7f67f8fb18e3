// Prompts × columns as a list that draws only rows near the screen.
import { useVirtualizer } from "@tanstack/react-virtual";
import type { ComponentChildren } from "preact";
import { memo } from "preact/compat";
import { useEffect, useRef, useState } from "preact/hooks";
import { type Index, picture } from "../data";
import { t, word } from "../words";
import { Clamp, format, Gone } from "./common";
import {
  type Column,
  cellAt,
  judgedOf,
  judgingOf,
  meanOf,
  type Row,
  type Score,
  type Shot,
  scoreOf,
  shotsOf,
  type Table,
  useMore,
} from "./table";
import { linkTo, opening, type View } from "./view";
import { sourceLabel } from "./viewer";

interface Look {
  table: Table;
  columns: Column[];
  metric: string;
  view: View;
  benchmark: string;
  /** The query of the list, for links. */
  list: string;
}

interface ListProps extends Look {
  rows: Row[];
  /** The item and column to scroll to and to focus, once. */
  at: { row: Row; column: Column; item: string } | null;
}

export function List({ rows, at, ...look }: ListProps) {
  const { table, columns } = look;
  const box = useRef<HTMLElement>(null);
  const virtual = useVirtualizer({
    count: rows.length,
    getScrollElement: () => box.current,
    estimateSize: () => 250,
    getItemKey: (n) => rows[n]?.order ?? n,
    overscan: 3,
    useFlushSync: false,
  });
  const order = rows.map((row) => row.order).join();
  useEffect(() => box.current?.scrollTo({ top: 0 }), [order]);
  const reach = (row: number, find: (drawn: Element) => HTMLElement | null | undefined, tries = 20) => {
    virtual.scrollToIndex(row, { align: "auto" });
    requestAnimationFrame(() => {
      const drawn = box.current?.querySelector(`[data-index="${row}"]`);
      const link = drawn && find(drawn);
      if (link) link.focus({ preventScroll: true });
      else if (tries) reach(row, find, tries - 1); // the row is drawn a frame later
    });
  };
  useEffect(() => {
    const row = at ? rows.indexOf(at.row) : -1;
    if (!at || row < 0) return;
    reach(row, (drawn) =>
      [...drawn.querySelectorAll<HTMLElement>("a.g-thumb")].find(
        (link) => link.dataset["item"] === at.item && link.dataset["column"] === at.column.key,
      ),
    );
  }, [at]);
  const onKeyDown = (event: KeyboardEvent) => {
    const link = (event.target as Element).closest<HTMLElement>("a.g-thumb");
    if (!link || !event.key.startsWith("Arrow")) return;
    const drawn = link.closest<HTMLElement>("[data-index]");
    const links = [...(drawn?.querySelectorAll<HTMLElement>("a.g-thumb") ?? [])];
    const n = links.indexOf(link);
    const down = { ArrowUp: -1, ArrowDown: 1 }[event.key] ?? 0;
    event.preventDefault();
    if (!down) return links[n + (event.key === "ArrowRight" ? 1 : -1)]?.focus();
    const row = Number(drawn?.dataset["index"]) + down;
    if (!rows[row]) return;
    const ofColumn = (all: HTMLElement[]) => all.filter((one) => one.dataset["column"] === link.dataset["column"]);
    const place = ofColumn(links).indexOf(link);
    reach(row, (to) => {
      const found = [...to.querySelectorAll<HTMLElement>("a.g-thumb")];
      const same = ofColumn(found);
      return same[place] ?? same.at(-1) ?? found[0];
    });
  };
  return (
    // biome-ignore lint/a11y/noNoninteractiveTabindex: what scrolls must be reached by the keyboard
    <section class="g-scroll" ref={box} tabIndex={0} aria-label={t("images")}>
      {/* biome-ignore lint/a11y/noStaticElementInteractions: arrows go from link to link within */}
      <div
        class={table.edits ? "g-table g-edits" : "g-table"}
        style={{ "--columns": columns.length }}
        onKeyDown={onKeyDown}
      >
        <Head {...look} />
        <ol class="g-rows" style={{ height: `${virtual.getTotalSize()}px` }}>
          {virtual.getVirtualItems().map(({ index, key, start, size }) => (
            <li
              key={key}
              ref={virtual.measureElement}
              data-index={index}
              aria-posinset={index + 1}
              aria-setsize={rows.length}
              class="g-row"
              style={{ transform: `translateY(${start}px)` }}
            >
              <InTurn still={!virtual.isScrolling} height={size} prompt={rows[index]?.prompt ?? ""}>
                <Line row={rows[index] as Row} {...look} />
              </InTurn>
            </li>
          ))}
        </ol>
      </div>
    </section>
  );
}

const waiting: (() => void)[] = [];
const PASSING = 200;
// a row that a drag of the scroll bar passes is removed by then
const PASSING_MS = 80;

interface InTurnProps {
  still: boolean;
  height: number;
  /** The text shown until then, cut. */
  prompt: string;
  children: ComponentChildren;
}

/** Draws rows that scroll into sight one per frame, in order, so that no frame takes long. */
function InTurn({ still, height, prompt, children }: InTurnProps) {
  const [drawn, setDrawn] = useState(still);
  useEffect(() => {
    if (drawn) return;
    const mine = () => setDrawn(true);
    const stays = setTimeout(() => {
      if (!waiting.length) requestAnimationFrame(turn);
      waiting.push(mine);
    }, PASSING_MS);
    return () => {
      clearTimeout(stays);
      const place = waiting.indexOf(mine);
      if (place >= 0) waiting.splice(place, 1);
    };
  }, []);
  if (drawn) return children;
  return (
    <div class="g-prompt" style={{ height: `${height}px` }}>
      <p class="g-text g-cut" dir="auto">
        {prompt.slice(0, PASSING)}
      </p>
    </div>
  );
}

function turn(): void {
  waiting.shift()?.();
  if (waiting.length) requestAnimationFrame(turn);
}

function Head({ table, columns, view }: Look) {
  return (
    <div class="g-head">
      <div>{t("prompt")}</div>
      {table.edits && <div>{t("source")}</div>}
      {columns.map((column) => {
        const { board, problem } = cellAt(table.index, column.cells[0] as number);
        const limit = board === null ? 0 : table.index.boards[board]?.limit;
        const evaluator = judgingOf(column, view)?.evaluator;
        const note = limit ? t("first_items", { n: limit }) : problem;
        const about = [table.edits && t("result"), evaluator && t("judged_by", { who: evaluator }), note];
        return (
          <div key={column.key}>
            <bdi>{column.key}</bdi>
            <small>{about.filter(Boolean).join(" · ")}</small>
          </div>
        );
      })}
    </div>
  );
}

/** The cells of a row. They do not change while the list scrolls. */
const Line = memo(
  ({ row, ...look }: Look & { row: Row }) => (
    <>
      <div class="g-prompt">
        <Clamp text={row.prompt || t("no_prompt")} />
        <p class="g-keys">
          {Object.entries(row.keys).map(([name, value]) => (
            <span class="g-pill" key={name} title={word(name)} dir="auto">
              {value}
            </span>
          ))}
        </p>
      </div>
      {look.table.edits && <Sources row={row} {...look} />}
      {look.columns.map((column) => (
        <Shots key={column.key} row={row} column={column} {...look} />
      ))}
    </>
  ),
  (a, b) =>
    a.row === b.row && a.list === b.list && a.columns === b.columns && a.metric === b.metric && a.table === b.table,
);

/** The image to edit, the same for all models. */
function Sources({ row, table, columns, benchmark, list }: Look & { row: Row }) {
  const column = columns.find((one) => shotsOf(row, one).length);
  const shot = column && shotsOf(row, column)[0];
  return (
    <div class="g-cell g-sources">
      <p class="g-name">{t("source")}</p>
      <div class={row.inputs.length > 1 ? "g-thumbs" : "g-thumbs g-one"}>
        {row.inputs.map((input, n) => {
          const shown = input.preview ? (
            <Picture src={picture(input.preview)} />
          ) : (
            <Gone kind="source" title={t("no_copy")} remark={t("no_copy_why")} />
          );
          const label = sourceLabel(row, n);
          const inside = (
            <>
              {shown}
              <span class="g-caption">{label}</span>
            </>
          );
          return column && shot ? (
            <a key={label} class="g-thumb" href={linkTo(benchmark, list, shot.id, column.key)} onClick={opening}>
              <span class="g-hidden">{shot.id} </span>
              {inside}
            </a>
          ) : (
            <div key={label}>{inside}</div>
          );
        })}
      </div>
      {table.edits && !row.inputs.length && <p class="g-soft">{t("not_recorded")}</p>}
    </div>
  );
}

function Shots({ row, column, table, metric, view, benchmark, list }: Look & { row: Row; column: Column }) {
  const shots = shotsOf(row, column);
  const average = shots.length > 1 ? meanOf(row, column, metric, view) : null;
  const { board } = cellAt(table.index, column.cells[0] as number);
  const rewrites = board !== null && table.index.boards[board]?.rewriter;
  return (
    <div class="g-cell">
      <p class="g-name">
        <bdi>{column.key}</bdi>
      </p>
      {average && (
        <p class="g-mean">
          {t("mean_of", { value: format(average.mean) })}
          {average.n < shots.length && ` (${t("of", { n: average.n, all: shots.length })})`}
        </p>
      )}
      {!column.judgings && <p class="g-soft">{column.problem || t("loading")}</p>}
      {column.judgings && !shots.length && <p class="g-soft">{t("not_run")}</p>}
      <div class={shots.length > 1 ? "g-thumbs" : "g-thumbs g-one"}>
        {shots.map((shot) => (
          <Thumb
            key={shot.id}
            column={column}
            shot={shot}
            score={scoreOf(column, shot.id, metric, view)}
            judged={judgedOf(column, shot, view)}
            href={linkTo(benchmark, list, shot.id, column.key)}
          />
        ))}
      </div>
      {rewrites && shots[0] && <Rewritten index={table.index} column={column} shot={shots[0]} />}
    </div>
  );
}

/** The prompt that the model received in place of the row's prompt; repetitions share it. */
function Rewritten({ index, column, shot }: { index: Index; column: Column; shot: Shot }) {
  const more = useMore(index, column.judgings?.[0], shot.id);
  if (typeof more !== "object" || !more.rewritten) return null;
  const [by, text] = more.rewritten;
  return (
    <p class="g-rewritten" dir="auto">
      <span class="g-soft">{by}: </span>
      {text}
    </p>
  );
}

interface ThumbProps {
  column: Column;
  shot: Shot;
  score: Score | null;
  judged: string;
  href: string;
}

function Thumb({ column, shot, score, judged, href }: ThumbProps) {
  const there = shot.status === "generated";
  const scored = score ? format(score) : there ? (judged && judged !== "judged" ? word(judged) : t("not_scored")) : "";
  const share = score && Math.min(1, Math.max(0, score.value / score.scale));
  return (
    <a class="g-thumb" data-item={shot.id} data-column={column.key} href={href} onClick={opening}>
      <span class="g-hidden">
        {column.key}, {shot.id}:{" "}
      </span>
      {there && shot.preview ? (
        <Picture src={picture(shot.preview)} width={shot.width} height={shot.height} />
      ) : (
        <Gone kind={shot.status} title={there ? t("no_preview") : word(shot.status)} remark={shot.remark ?? ""} />
      )}
      <span class="g-caption">
        <span class={score ? "g-score" : "g-score g-word"}>{scored}</span>
        {shot.seed !== undefined && (
          <span class="g-seed" title={shot.seedIgnored ? t("no_seed") : undefined}>
            {t("seed")} {shot.seed}
            {shot.seedIgnored && ` (${t("ignored")})`}
          </span>
        )}
      </span>
      {share !== null && (
        <span class="g-meter">
          <i style={{ width: `${share * 100}%` }} />
        </span>
      )}
    </a>
  );
}

interface PictureProps {
  src: string;
  width?: number | undefined;
  height?: number | undefined;
}

function Picture({ src, width, height }: PictureProps) {
  return (
    <span class="g-picture" style={{ aspectRatio: width && height ? `${width} / ${height}` : "auto" }}>
      <img src={src} alt="" decoding="async" />
    </span>
  );
}
