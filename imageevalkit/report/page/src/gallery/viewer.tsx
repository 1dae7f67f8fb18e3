// One image and the images to compare with it.
import { useEffect, useState } from "preact/hooks";
import type { Index } from "../data";
import { change, slug } from "../route";
import { t, type Word, word } from "../words";
import { Panel } from "./answers";
import { Copy, copy, Dialog, Said } from "./common";
import { type Frame, moved, STEP, Stage, WHOLE, type Zoom, zoomed, zoomOf, zoomText } from "./stage";
import { type Column, fileOf, type Row, type Shot, shotsOf, sourceFile, type Table } from "./table";
import { joined, MODES, type Mode, SOURCE, type View } from "./view";

/** The position of the reader: an image of a row. */
export interface Place {
  row: Row;
  column: Column;
  shot: Shot;
}

/** The image that the address names, in any row. */
export function placeOf(table: Table, view: View): Place | null {
  const row = view.item ? table.rows.find((one) => one.items.some((id) => slug(id) === view.item)) : undefined;
  const column = table.columns.find((one) => one.key === view.model) ?? table.columns.find((one) => one.judgings);
  if (!row || !column) return null;
  const shot = shotsOf(row, column).find((one) => slug(one.id) === view.item);
  return shot ? { row, column, shot } : null;
}

/** Left and right walk through a row and on to the next; up and down keep the model and the repetition. */
export function stepped(rows: Row[], columns: Column[], from: Place, across: number, down: number): Place | null {
  let r = rows.indexOf(from.row);
  if (down) {
    const k = shotsOf(from.row, from.column).indexOf(from.shot);
    for (r += down; rows[r]; r += down) {
      const row = rows[r] as Row;
      const shots = shotsOf(row, from.column);
      const shot = shots[Math.min(k, shots.length - 1)];
      if (shot) return { row, column: from.column, shot };
    }
    return null;
  }
  const flat = (row: Row) => columns.flatMap((column) => shotsOf(row, column).map((shot) => ({ row, column, shot })));
  let list = flat(from.row);
  let i = list.findIndex((one) => one.shot === from.shot && one.column === from.column) + across;
  while (!list[i]) {
    r += across;
    const row = rows[r];
    if (!row) return null;
    list = flat(row);
    i = across > 0 ? 0 : list.length - 1;
  }
  return list[i] as Place;
}

interface ViewerProps {
  table: Table;
  rows: Row[];
  /** The shown images. */
  columns: Column[];
  view: View;
  place: Place;
  onClose: () => void;
  onHelp: () => void;
}

export function Viewer({ table, rows, columns, view, place, onClose, onHelp }: ViewerProps) {
  const { row, column, shot } = place;
  const { index } = table;
  const [zoom, setZoom] = useZoom(view.zoom, row);
  const [turn, setTurn] = useState(0);
  const others = columns.filter((one) => one !== column && shotsOf(row, one).length);
  const choices = [...(row.inputs.length ? [SOURCE] : []), ...others.map((one) => one.key)];
  const beside = (view.beside ?? (row.inputs.length ? [SOURCE] : [])).filter((key) => choices.includes(key));
  const compared = others.filter((one) => beside.includes(one.key));
  const shots: Place[] = [place, ...compared.map((one) => ({ row, column: one, shot: fellow(row, one, shot) }))];
  const sources = beside.includes(SOURCE) ? row.inputs.map((_, n) => sourceFrame(index, row, n)) : [];
  const label = (one: Place) => {
    if (shots.length > 1) return one.column.key;
    return sources.length ? t("result") : "";
  };
  const all = [...sources, ...shots.map((one) => shotFrame(index, one, label(one)))];
  // a slider has two sides: a source, or the current image, and the next one
  const frames = view.mode === "slider" ? all.filter((_, n) => n === 0 || n === (sources.length || 1)) : all;

  const step = (across: number, down: number) => {
    const next = stepped(rows, columns, place, across, down);
    if (next) change({ item: next.shot.id, model: next.column.key });
  };
  const compare = (keys: string[]) => change({ with: joined(keys, true) });
  const toggle = (key: string) =>
    compare(beside.includes(key) ? beside.filter((one) => one !== key) : [...beside, key]);
  const next = () => {
    // none, then each other model by itself, then none again
    const keys = others.map((one) => one.key);
    const now = keys.findIndex((key) => beside.includes(key));
    const kept = beside.filter((key) => key === SOURCE);
    compare([...kept, ...keys.slice(now + 1, now + 2)]);
  };
  const show = (mode: Mode) => {
    if (mode === view.mode && mode === "flicker") setTurn(turn + 1);
    if (frames.length < 2 && choices[0]) compare([choices[0]]);
    change({ mode: mode === "side" ? "" : mode });
  };

  const keys: Record<string, () => void> = {
    ArrowLeft: () => step(-1, 0),
    ArrowRight: () => step(1, 0),
    ArrowUp: () => step(0, -1),
    ArrowDown: () => step(0, 1),
    "shift ArrowLeft": () => setZoom((z) => moved(z, 0.1, 0)),
    "shift ArrowRight": () => setZoom((z) => moved(z, -0.1, 0)),
    "shift ArrowUp": () => setZoom((z) => moved(z, 0, 0.1)),
    "shift ArrowDown": () => setZoom((z) => moved(z, 0, -0.1)),
    "+": () => setZoom((z) => zoomed(z, STEP)),
    "=": () => setZoom((z) => zoomed(z, STEP)),
    "-": () => setZoom((z) => zoomed(z, 1 / STEP)),
    "0": () => setZoom(() => WHOLE),
    s: () => show("side"),
    f: () => show("flicker"),
    l: () => show("slider"),
    c: next,
    "?": onHelp,
    ...Object.fromEntries(choices.slice(0, 9).map((key, n) => [String(n + 1), () => toggle(key)])),
  };
  const onKeyDown = (event: KeyboardEvent) => {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    const on = event.target as HTMLElement;
    if (on.matches("input[type=range]") && event.key.startsWith("Arrow")) return;
    const turns = event.key === " " && view.mode === "flicker" && !on.matches("button, a, input");
    const shifted = event.shiftKey && event.key.startsWith("Arrow") ? `shift ${event.key}` : event.key;
    const act = turns ? () => setTurn(turn + 1) : keys[shifted];
    if (!act) return;
    event.preventDefault();
    act();
  };

  const bar: [string, Word, () => void][] = [
    ["←", "previous_image", () => step(-1, 0)],
    ["→", "next_image", () => step(1, 0)],
    ["↑", "previous_prompt", () => step(0, -1)],
    ["↓", "next_prompt", () => step(0, 1)],
    ["−", "zoom_out", () => setZoom((z) => zoomed(z, 1 / STEP))],
    ["+", "zoom_in", () => setZoom((z) => zoomed(z, STEP))],
    ["?", "keyboard", onHelp],
    ["✕", "close", onClose],
  ];
  return (
    <Dialog label={`${column.key}, ${shot.id}`} kind="g-viewer" onClose={onClose} onKeyDown={onKeyDown}>
      <header class="g-bar">
        <h2>
          <bdi>{column.key}</bdi> <span class="g-soft">· {shot.id}</span>
        </h2>
        <Said />
        <div class="g-buttons">
          <Copy text={shot.id} label={t("copy_id")} />
          <button type="button" class="g-button" onClick={() => copy(location.href)}>
            {t("copy_link")}
          </button>
          {bar.map(([sign, name, act]) => (
            <button
              key={name}
              type="button"
              class={["−", "+", "?"].includes(sign) ? "g-button g-fine" : "g-button"}
              aria-label={t(name)}
              title={t(name)}
              onClick={act}
            >
              {sign}
            </button>
          ))}
        </div>
      </header>
      <div class={shots.length > 1 ? "g-body g-many" : "g-body"}>
        <div class="g-look">
          {choices.length > 0 && (
            <div class="g-compare">
              <fieldset>
                <legend>{t("compare_with")}</legend>
                {choices.map((key, n) => (
                  <label key={key} class="g-chip" title={n < 9 ? String(n + 1) : undefined}>
                    <input type="checkbox" checked={beside.includes(key)} onChange={() => toggle(key)} />
                    <bdi>{key === SOURCE ? t("source") : key}</bdi>
                  </label>
                ))}
              </fieldset>
              <fieldset>
                <legend>{t("how")}</legend>
                {MODES.map((mode) => (
                  <label key={mode} class="g-chip">
                    <input type="radio" name="mode" checked={view.mode === mode} onChange={() => show(mode)} />
                    {t(`mode_${mode}`)}
                  </label>
                ))}
                {view.mode === "flicker" && frames.length > 1 && (
                  <button type="button" class="g-button" onClick={() => setTurn(turn + 1)}>
                    {t("flip")}
                  </button>
                )}
              </fieldset>
            </div>
          )}
          <Stage frames={frames} mode={view.mode} turn={turn} zoom={zoom} onZoom={setZoom} />
        </div>
        <div class="g-panels" style={{ "--frames": shots.length }}>
          {shots.length > 1 && (
            <p class="g-shared" dir="auto">
              {row.prompt || t("no_prompt")}
            </p>
          )}
          {shots.map((one) => (
            <Panel
              key={`${one.column.key} ${one.shot.id}`}
              index={index}
              row={row}
              column={one.column}
              shot={one.shot}
              view={view}
              titled={shots.length > 1}
            />
          ))}
        </div>
      </div>
    </Dialog>
  );
}

/** The zoom and its position, kept in the address; another prompt starts unzoomed. */
function useZoom(text: string, row: Row): [Zoom, (to: (zoom: Zoom) => Zoom) => void] {
  const [zoom, setZoom] = useState({ row, zoom: zoomOf(text) });
  const now = zoom.row === row ? zoom.zoom : WHOLE;
  useEffect(() => {
    if (zoomText(now) === text) return;
    const wait = setTimeout(() => change({ zoom: zoomText(now) }), 300); // browsers bound how often an address may change
    return () => clearTimeout(wait);
  }, [zoomText(now), text]);
  return [now, (to) => setZoom((before) => ({ row, zoom: to(before.row === row ? before.zoom : WHOLE) }))];
}

/** The image of another column to compare with: the same item, else the first of the prompt. */
function fellow(row: Row, column: Column, shot: Shot): Shot {
  const shots = shotsOf(row, column);
  return shots.find((one) => one.id === shot.id) ?? (shots[0] as Shot);
}

const ALT = 200;

export function shotFrame(index: Index, { row, column, shot }: Place, label: string): Frame {
  const there = shot.status === "generated"; // a placeholder is a file too
  return {
    key: `${column.key} ${shot.id}`,
    label,
    alt: `${column.key}, ${shot.id}: ${row.prompt.slice(0, ALT)}`,
    file: there ? fileOf(index, column, shot) : "",
    preview: (there && shot.preview) || "",
    gone: { kind: shot.status, title: word(shot.status), remark: shot.remark ?? "" },
  };
}

export function sourceLabel(row: Row, n: number): string {
  const of = row.inputs[n]?.of;
  return (row.inputs.length > 1 ? `${t("source")} ${n + 1}` : t("source")) + (of ? ` · ${of}` : "");
}

export function sourceFrame(index: Index, row: Row, n: number): Frame {
  const input = row.inputs[n];
  return {
    key: `source ${row.order} ${n}`,
    label: sourceLabel(row, n),
    alt: `${sourceLabel(row, n)}: ${row.prompt.slice(0, ALT)}`,
    file: input ? sourceFile(index, input) : "",
    preview: input?.preview ?? "",
    gone: { kind: "source", title: t("no_copy"), remark: t("no_copy_why") },
  };
}
