import "./gallery.css";
import { useEffect, useMemo, useRef, useState } from "preact/hooks";
import type { Index } from "../data";
import { change, href, route } from "../route";
import { t, type Word, word } from "../words";
import { copy, Dialog, Keys, Said } from "./common";
import { List } from "./rows";
import { arranged, type Column, metricsOf, orders, stateOf, type Table, unitOf, useTable } from "./table";
import { close, joined, keyed, ofList, unfilter, type View, viewOf } from "./view";
import { placeOf, Viewer } from "./viewer";

export function Gallery({ index, benchmark }: { index: Index; benchmark: string }) {
  const shown = index.benchmarks.filter((one) => one.prompts);
  const number = index.benchmarks.findIndex((one) => one.name === benchmark && one.prompts);
  if (number < 0) {
    return (
      <section class="card">
        <h1>{t("gallery")}</h1>
        <p>{t(shown.length ? (benchmark ? "no_benchmark" : "choose_benchmark") : "no_images")}</p>
        <ul>
          {shown.map(({ name }) => (
            <li key={name}>
              <a href={href(["gallery", name])}>{name}</a>
            </li>
          ))}
        </ul>
      </section>
    );
  }
  return <Benchmark key={benchmark} index={index} number={number} benchmark={benchmark} />;
}

function Benchmark({ index, number, benchmark }: { index: Index; number: number; benchmark: string }) {
  const { query } = route.value;
  const list = ofList(query);
  const view = viewOf(query);
  const table = useTable(index, number, view.hide);
  const [help, setHelp] = useState(false);
  const room = useRoom();
  return (
    <section class="g" ref={room} aria-label={`${t("gallery")}: ${benchmark}`}>
      <h1 class="g-hidden">
        {t("gallery")}: <bdi>{benchmark}</bdi>
      </h1>
      {typeof table === "string" && (
        <p class="g-error" role="alert">
          {table}
        </p>
      )}
      {table && typeof table !== "string" ? (
        <Shown table={table} view={view} list={list} benchmark={benchmark} onHelp={() => setHelp(true)} />
      ) : (
        !table && <p>{t("loading")}</p>
      )}
      {help && <Help onClose={() => setHelp(false)} />}
    </section>
  );
}

interface ShownProps {
  table: Table;
  view: View;
  list: string;
  benchmark: string;
  onHelp: () => void;
}

function Shown({ table, view, list, benchmark, onHelp }: ShownProps) {
  const loaded = table.columns.map((column) => Number(Boolean(column.judgings))).join("");
  const columns = useMemo(() => table.columns.filter((c) => !view.hide.includes(c.key)), [table, list, loaded]);
  const metrics = metricsOf(table);
  const metric = metrics.includes(view.metric) ? view.metric : (metrics[0] ?? "");
  const rows = useMemo(() => arranged(table, columns, metric, view), [table, columns, metric, list]);
  const place = placeOf(table, view);
  const [last, setLast] = useState<{ row: NonNullable<typeof place>["row"]; column: Column; item: string } | null>(
    null,
  );
  const onClose = () => {
    if (place) setLast({ row: place.row, column: place.column, item: place.shot.id });
    close();
  };
  const before = useRef(place);
  useEffect(() => {
    // the Back button closed it
    const was = before.current;
    if (was && !place) setLast({ row: was.row, column: was.column, item: was.shot.id });
    before.current = place;
  });
  useEffect(() => {
    const onKey = (event: KeyboardEvent) => {
      const typing = (event.target as Element).matches("input, select, textarea, dialog *, dialog");
      if (typing || event.ctrlKey || event.metaKey || event.altKey) return;
      if (event.key === "?") onHelp();
      else if (event.key === "/") document.querySelector<HTMLElement>(".g input[type=search]")?.focus();
      else return;
      event.preventDefault();
    };
    document.addEventListener("keydown", onKey);
    return () => document.removeEventListener("keydown", onKey);
  }, [onHelp]);
  const all = table.rows.length;
  const lost = view.item && !place && table.columns.every((c) => c.judgings || c.problem || view.hide.includes(c.key));
  return (
    <>
      <Tools table={table} columns={columns} metrics={metrics} metric={metric} view={view} benchmark={benchmark}>
        <p class="g-count" role="status">
          {t("prompts", { n: rows.length === all ? all : t("of", { n: rows.length, all }) })}
        </p>
      </Tools>
      {rows.length ? (
        <List
          table={table}
          columns={columns}
          rows={rows}
          metric={metric}
          view={view}
          list={list}
          benchmark={benchmark}
          at={last}
        />
      ) : (
        <p class="g-empty">
          {t("no_prompt_fits")}{" "}
          <button type="button" class="more" onClick={unfilter}>
            {t("unfilter")}
          </button>
        </p>
      )}
      {place && (
        <Viewer
          table={table}
          rows={rows}
          columns={columns}
          view={view}
          place={place}
          onClose={onClose}
          onHelp={onHelp}
        />
      )}
      {lost && (
        <Dialog label={t("not_here")} kind="g-help" onClose={close}>
          <p>{t("no_item", { item: view.item })}</p>
          <button type="button" class="g-button" onClick={close}>
            {t("close")}
          </button>
        </Dialog>
      )}
    </>
  );
}

interface ToolsProps {
  table: Table;
  columns: Column[];
  metrics: string[];
  metric: string;
  view: View;
  benchmark: string;
  children: preact.ComponentChildren;
}

function Tools({ table, columns, metrics, metric, view, benchmark, children }: ToolsProps) {
  const [open, setOpen] = useState(false);
  const { index } = table;
  const states = useMemo(
    () => [
      ...new Set(
        table.columns.flatMap((c) => c.judgings?.[0]?.items.items.map((shot) => stateOf(c, shot, view)) ?? []),
      ),
    ],
    [table, columns, view.judge],
  );
  const judges = [...new Set(table.columns.flatMap((c) => c.judgings?.map((one) => one.evaluator) ?? []))];
  const several = table.columns.some((column) => (column.judgings?.length ?? 0) > 1);
  const { unit, percent } = unitOf(columns, metric, view);
  const offered = orders(columns, view);
  const own = offered.columns.flatMap(({ key }) => [`low:${key}`, `high:${key}`]);
  const sort = [...offered.plain, ...own].includes(view.sort) ? view.sort : "order";
  const benchmarks = index.benchmarks.filter((one) => one.prompts);
  return (
    <header class="g-tools" data-open={open}>
      {benchmarks.length === 1 ? (
        <bdi class="g-benchmark">{benchmark}</bdi>
      ) : (
        <label>
          <span class="g-hidden">{t("benchmark")}</span>
          <select
            class="g-benchmark"
            value={benchmark}
            onChange={(event) => {
              location.hash = href(["gallery", event.currentTarget.value], { hide: joined(view.hide) });
            }}
          >
            {benchmarks.map(({ name }) => (
              <option key={name}>{name}</option>
            ))}
          </select>
        </label>
      )}
      <Search q={view.q} />
      {children}
      <button type="button" class="g-button g-more" aria-expanded={open} onClick={() => setOpen(!open)}>
        {t("filters")}
      </button>
      <div class="g-filters">
        {Object.entries(table.filters).map(([name, values]) => (
          <Choice
            key={name}
            label={word(name)}
            value={view.keys[name] ?? ""}
            all
            options={values.map((value) => [value, value])}
            onChoose={(value) => change(keyed(name, value))}
          />
        ))}
        {(states.length > 1 || view.status) && (
          <Choice
            label={t("status")}
            value={view.status}
            all
            options={[...new Set([...states, view.status])]
              .filter(Boolean)
              .sort()
              .map((s) => [s, word(s)])}
            onChoose={(status) => change({ status })}
          />
        )}
        {metrics.length > 0 && (
          <fieldset class="g-range">
            <legend>{percent ? t("score_percent") : t("score_range")}</legend>
            <Bound label={t("from")} name="low" value={view.low} unit={unit} />
            –
            <Bound label={t("to")} name="high" value={view.high} unit={unit} />
          </fieldset>
        )}
        {metrics.length > 1 && (
          <Choice
            label={t("score_shown")}
            value={metric}
            options={metrics.map((name) => [name, word(name)])}
            onChoose={(name) => change({ metric: name === metrics[0] ? "" : name })}
          />
        )}
        {several && (
          <Choice
            label={t("judge")}
            value={view.judge}
            options={[["", t("latest")], ...judges.map((name) => [name, name] as [string, string])]}
            onChoose={(judge) => change({ judge })}
          />
        )}
        <label class="g-choice">
          {t("order")}
          <select
            value={sort}
            onChange={({ currentTarget: { value } }) => change({ sort: value === "order" ? "" : value })}
          >
            {offered.plain.map((name) => (
              <option key={name} value={name}>
                {t(`sort_${name}` as Word)}
              </option>
            ))}
            {offered.columns.length > 0 && (
              <optgroup label={t("of_one_model")}>
                {offered.columns.flatMap(({ key }) =>
                  (["low", "high"] as const).map((how) => (
                    <option key={how + key} value={`${how}:${key}`}>
                      {t(`sort_${how}_of`, { model: key })}
                    </option>
                  )),
                )}
              </optgroup>
            )}
          </select>
        </label>
        <span class="g-buttons">
          <button type="button" class="g-button" onClick={unfilter}>
            {t("unfilter")}
          </button>
          <button type="button" class="g-button" onClick={() => copy(location.href)}>
            {t("copy_link")}
          </button>
          <Said />
        </span>
        {table.columns.length > 1 && (
          <fieldset class="g-models">
            <legend class="g-hidden">{t("models_shown")}</legend>
            {table.columns.map(({ key }) => {
              const hidden = view.hide.includes(key);
              return (
                <label key={key} class="g-chip">
                  <input
                    type="checkbox"
                    checked={!hidden}
                    onChange={() =>
                      change({ hide: joined(hidden ? view.hide.filter((k) => k !== key) : [...view.hide, key]) })
                    }
                  />
                  <bdi>{key}</bdi>
                </label>
              );
            })}
          </fieldset>
        )}
      </div>
    </header>
  );
}

/** The typed value, reported after a short pause: otherwise each letter would start a search. */
function useLate(value: string, tell: (value: string) => void): [string, (value: string) => void] {
  const [typed, setTyped] = useState(value);
  useEffect(() => setTyped(value), [value]);
  useEffect(() => {
    if (typed === value) return;
    const wait = setTimeout(() => tell(typed), 200);
    return () => clearTimeout(wait);
  }, [typed]);
  return [typed, setTyped];
}

function Search({ q }: { q: string }) {
  const [typed, setTyped] = useLate(q, (value) => change({ q: value }));
  return (
    <label class="g-search">
      <span class="g-hidden">{t("search")}</span>
      <input
        type="search"
        placeholder={t("search_for")}
        autocomplete="off"
        value={typed}
        onInput={(event) => setTyped(event.currentTarget.value)}
      />
    </label>
  );
}

function Bound({ label, name, value, unit }: { label: string; name: string; value: string; unit: number }) {
  const [typed, setTyped] = useLate(value, (text) => change({ [name]: text }));
  return (
    <input
      type="number"
      aria-label={label}
      placeholder={name === "low" ? "0" : String(unit)}
      step={unit <= 1 ? 0.05 : "any"}
      value={typed}
      onInput={(event) => setTyped(event.currentTarget.value)}
    />
  );
}

interface ChoiceProps {
  label: string;
  value: string;
  options: [string, string][];
  /** Offers to request none of them. */
  all?: boolean;
  onChoose: (value: string) => void;
}

function Choice({ label, value, options, all, onChoose }: ChoiceProps) {
  return (
    <label class="g-choice">
      {label}
      <select value={value} onChange={(event) => onChoose(event.currentTarget.value)}>
        {all && <option value="">{t("all")}</option>}
        {options.map(([name, text]) => (
          <option key={name} value={name}>
            {text}
          </option>
        ))}
      </select>
    </label>
  );
}

function Help({ onClose }: { onClose: () => void }) {
  const keys: [string, string][] = [
    ["/", t("search")],
    ["← →", t("help_across")],
    ["↑ ↓", t("help_down")],
    ["Enter", t("help_open")],
    ["Esc", t("close")],
    ["c", t("help_compare")],
    ["1 … 9", t("help_choose")],
    ["s f l", t("help_modes")],
    [t("space"), t("help_flip")],
    ["+ − 0", t("help_zoom")],
    ["⇧ ← ↑ ↓ →", t("help_pan")],
    ["?", t("keyboard")],
  ];
  return <Keys keys={keys} onClose={onClose} />;
}

/** Gives a section the rest of the window below it. */
function useRoom(): { current: HTMLElement | null } {
  const section = useRef<HTMLElement>(null);
  useEffect(() => {
    const sized = new ResizeObserver(() => {
      const top = (section.current?.getBoundingClientRect().top ?? 0) + scrollY;
      section.current?.style.setProperty("--above", `${top}px`);
    });
    sized.observe(document.querySelector("header") ?? document.body);
    return () => sized.disconnect();
  }, []);
  return section;
}
