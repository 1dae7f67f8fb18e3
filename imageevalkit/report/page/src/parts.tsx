// Small parts that all pages use.
import type { ComponentChildren } from "preact";
import { useState } from "preact/hooks";
import type { Board, Cell, Coverage, Figure } from "./data";
import { href } from "./route";
import { t, word } from "./words";

/** A text of other people, in its own direction. A long text is cut until the reader asks for the rest. */
export function Text({ text, most = 160 }: { text: string; most?: number }) {
  const [open, setOpen] = useState(false);
  if (text.length <= most) return <bdi class="text">{text}</bdi>;
  return (
    <>
      <bdi class="text">{open ? text : cut(text, most)}</bdi>{" "}
      <button type="button" class="more" aria-expanded={open} onClick={() => setOpen(!open)}>
        {open ? t("less") : t("more")}
      </button>
    </>
  );
}

/** The name of a model, benchmark or metric. */
export function Name({ name }: { name: string }) {
  return <Text text={name} most={64} />;
}

/** A name in a link, a heading or a label, which cannot contain a button: the start of a long name. */
export function Short({ name }: { name: string }) {
  const shown = cut(name, 64);
  return (
    <bdi class="text" title={shown === name ? undefined : name}>
      {shown}
    </bdi>
  );
}

/** The first `most` characters of a longer text. */
export function cut(text: string, most: number): string {
  return text.length > most ? `${text.slice(0, most).replace(/\p{Surrogate}$/u, "")} …` : text;
}

/** A table or another wide element with its own scroll bar. */
export function Scroll({ label, children }: { label: string; children: ComponentChildren }) {
  return (
    // biome-ignore lint/a11y/noNoninteractiveTabindex: what scrolls must be reached by keyboard
    <section class="scroll" aria-label={label} tabIndex={0}>
      {children}
    </section>
  );
}

export function CellLink({ cell, board }: { cell: Cell; board: Board | undefined }) {
  return (
    <a href={href(["cell", cell.model, cell.benchmark], { board: board?.label ?? "" })}>
      <Short name={cell.model} />
    </a>
  );
}

/** The mark beside each score whose judge has drifted. */
export function Drift({ of }: { of: Figure | undefined }) {
  return of?.drift ? (
    <span class="drift" title={of.drift}>
      !
    </span>
  ) : null;
}

/** A figure of a cell with its interval, or the reason why there is none. `detail` adds its place on the scale. */
export function Score({
  cell,
  metric,
  detail = false,
  count = false,
}: {
  cell: Cell | undefined;
  metric: string;
  detail?: boolean;
  count?: boolean;
}) {
  if (!cell) return <span class="none">–</span>;
  const figure = cell.figures[metric];
  if (!figure && !cell.state) return <span class="none">–</span>;
  if (!figure) return <State text={cell.state} count={cell.coverage} />;
  if (figure.value === null) return <State text={figure.text} />;
  return (
    <>
      <span class="line">
        <span class={figure.best ? "value best" : "value"}>{figure.text}</span>
        <Drift of={figure} /> <span class="interval">{figure.interval}</span>
        {figure.noInterval && <small class="soft">{t("no_interval", { why: word(figure.noInterval) })}</small>}
        {figure.group && (
          <>
            {" "}
            <span class="group" title={t("group_note")}>
              {figure.group}
            </span>
          </>
        )}
        {count && <span class="count"> n = {figure.n}</span>}
      </span>
      {figure.remark && (
        <>
          {" "}
          <State text={figure.remark} />
        </>
      )}
      {detail && <Whisker figure={figure} />}
    </>
  );
}

/** A word in place of a number, or about it. */
export function State({ text, count }: { text: string; count?: Coverage | null }) {
  const judged = count && count.judged < count.expected ? ` ${count.judged}/${count.expected}` : "";
  return <span class="pill warn">{word(text) + judged}</span>;
}

function Whisker({ figure }: { figure: Figure }) {
  const { value, low, high, scale } = figure;
  if (value === null || !scale) return null;
  const place = (number: number) => `${(100 * Math.min(1, Math.max(0, number / scale))).toFixed(2)}%`;
  const spoken = t("of_scale", { value: figure.text, scale }) + (figure.interval && `, ${figure.interval}`);
  const style = { "--value": place(value), "--low": place(low ?? value), "--high": place(high ?? value) };
  return (
    <span class="whisker" role="img" aria-label={spoken} style={style}>
      <i />
    </span>
  );
}

/** The order of the bar: judged items first, then the missing ones, from the judge's failures to the model's. */
const SEGMENTS = ["judged", "unparsed", "judge_failed", "refused", "failed", "blank", "corrupt"];

export function CoverageBar({ coverage }: { coverage: Coverage }) {
  const { judged, expected, missing, flat } = coverage;
  const names = [...new Set([...SEGMENTS.slice(1), ...Object.keys(missing)])].filter((name) => missing[name]);
  const spoken = [t("judged_of", { judged, expected }), ...names.map((name) => `${missing[name]} ${word(name)}`)];
  return (
    <span class="coverage">
      <span class="bar" role="img" aria-label={spoken.join(", ")}>
        {["judged", ...names].map((name) => (
          <i
            key={name}
            class={`fill-${SEGMENTS.includes(name) ? name : "other"}`}
            style={{ "--share": (name === "judged" ? judged : (missing[name] ?? 0)) / (expected || 1) }}
          />
        ))}
      </span>
      <span class="counts">
        <span>
          <b>
            {judged}/{expected}
          </b>{" "}
          {word("judged")}
        </span>
        {names.map((name) => (
          <span key={name}>
            <i class={`swatch fill-${SEGMENTS.includes(name) ? name : "other"}`} />
            {missing[name]} {word(name)}
          </span>
        ))}
        {flat > 0 && (
          <span title={t("flat_note")}>
            {flat} {t("flat")}
          </span>
        )}
      </span>
    </span>
  );
}

/** The properties of a board besides its numbers. */
export function BoardFacts({ board }: { board: Board }) {
  return (
    <p class="facts">
      <span>
        {t("version")}{" "}
        <b>
          <Text text={board.version || t("not_stated")} />
        </b>
      </span>
      <span>
        {t("evaluator")}{" "}
        <b>
          <Text text={board.evaluator} />
        </b>
      </span>
      <span class={board.official ? "pill good" : "pill"}>{board.official ? t("official") : t("not_official")}</span>
      {board.rewriter && <span class="pill">{t("rewritten_by", { name: board.rewriter })}</span>}
      {board.limit > 0 && <span class="pill warn">{t("first_items", { n: board.limit })}</span>}
      {board.asked > 0 && <span class="pill warn">{t("stopped_after", { n: board.asked })}</span>}
    </p>
  );
}

export function Pairs({ of }: { of: Record<string, string> }) {
  return (
    <dl>
      {Object.entries(of).map(([name, value]) => (
        <div key={name}>
          <dt>
            <Text text={word(name)} />
          </dt>
          <dd>
            <Text text={value} />
          </dd>
        </div>
      ))}
    </dl>
  );
}

/** A choice of one value; the caller keeps it in the address. */
export function Choice({
  label,
  value,
  groups,
  onChange,
}: {
  label: string;
  value: string;
  /** Heading → [value, text]; "": without a heading. */
  groups: Map<string, [string, string][]>;
  onChange: (value: string) => void;
}) {
  const options = (all: [string, string][]) =>
    all.map(([name, text]) => (
      <option key={name} value={name}>
        {cut(text, 90)}
      </option>
    ));
  return (
    <label class="choice">
      {label}
      <select value={value} onChange={(event) => onChange(event.currentTarget.value)}>
        {[...groups].map(([heading, all]) =>
          heading ? (
            <optgroup key={heading} label={heading}>
              {options(all)}
            </optgroup>
          ) : (
            options(all)
          ),
        )}
      </select>
    </label>
  );
}

export function dollars(value: number | null): string {
  return value === null ? "" : `$${value && value < 1 ? value.toPrecision(2) : value.toFixed(2)}`;
}

export function seconds(value: number | null): string {
  return value === null ? "" : `${value.toFixed(2)} s`;
}
