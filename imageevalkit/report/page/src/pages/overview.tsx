import { useMemo } from "preact/hooks";
import { Intervals } from "../charts/figure";
import type { Cell, Index } from "../data";
import { CellLink, Choice, Drift, Name, Score, Short, State, Text } from "../parts";
import { type Column, cellsOf, columnsOf, lookOf, shareOf } from "../results";
import { change, href, route, slug } from "../route";
import { type Column as Head, Table } from "../table";
import { t, word } from "../words";
import { Pictures } from "./pictures";

interface Row {
  model: string;
  overall: number | null;
  /** The cells by number of board. */
  cells: Map<number, Cell>;
}

export function Overview({ index }: { index: Index }) {
  const columns = columnsOf(index);
  const boards = index.boards.map((_, number) => cellsOf(index, number));
  const rows: Row[] = index.models.map(({ name, overall }) => ({
    model: name,
    overall,
    cells: new Map(
      boards.flatMap((cells, number) => {
        const cell = cells.get(name);
        return cell ? [[number, cell] as const] : [];
      }),
    ),
  }));
  const benchmarks = index.benchmarks.length;
  return (
    <>
      <section class="card">
        <h1>{t("leaderboard")}</h1>
        <p class="facts">
          <span>{t("counts", { models: rows.length, benchmarks, results: index.cells.length })}</span>
          <time dateTime={index.made}>{index.made.slice(0, 16).replace("T", " ")}</time>
          <span>ImageEvalKit {index.version}</span>
        </p>
        {columns.length ? (
          <Leaderboard rows={rows} columns={columns} index={index} />
        ) : (
          <p class="note">{t("no_results")}</p>
        )}
      </section>
      <Ranking index={index} columns={columns.filter(({ metric }) => metric)} />
      <Pictures index={index} />
      <Problems index={index} />
    </>
  );
}

/** One table of all headline scores: as values with intervals, or as a heat map in percent of each scale. */
function Leaderboard({ rows, columns, index }: { rows: Row[]; columns: Column[]; index: Index }) {
  const isHeat = route.value.query.get("view") === "heat";
  const figureOf = (row: Row, column: Column) => row.cells.get(column.number)?.figures[column.metric];
  const percent = (value: number) => (100 * value).toFixed(1);
  const mean: Head<Row> = {
    key: "mean",
    head: <b>{meanOf(index)}</b>,
    value: (row) => row.overall,
    cell: (row) => (row.overall === null ? <span class="none">–</span> : <b>{percent(row.overall)}</b>),
    style: (row) => (isHeat ? heat(row.overall) : undefined),
  };
  const heads = columns.map(
    (column, number): Head<Row> => ({
      key: String(number),
      head: <Heading column={column} />,
      value: (row) => (isHeat ? shareOf(figureOf(row, column)) : figureOf(row, column)?.value),
      style: (row) => (isHeat ? heat(shareOf(figureOf(row, column))) : undefined),
      cell: (row) => {
        const cell = row.cells.get(column.number);
        if (isHeat) return <Heat cell={cell} column={column} share={shareOf(figureOf(row, column))} />;
        const score = <Score cell={cell} metric={column.metric} detail />;
        return cell ? <a href={toCell(cell, column)}>{score}</a> : score;
      },
    }),
  );
  const all: Head<Row>[] = [
    { key: "model", head: t("model"), value: (row) => row.model, cell: (row) => <Name name={row.model} /> },
    ...(index.mean.of.length ? [mean] : []),
    ...heads,
  ];
  const view = (name: string, to: string) => (
    <button type="button" aria-pressed={isHeat === (to === "heat")} onClick={() => change({ view: to })}>
      {name}
    </button>
  );
  const hasDrift = index.cells.some((cell) => Object.values(cell.figures).some(({ drift }) => drift));
  return (
    <>
      <p class="switch">
        {view(t("values"), "")}
        {view(t("heat_map"), "heat")}
      </p>
      <Table
        label={t("leaderboard")}
        rows={rows}
        columns={all}
        keyOf={(row) => row.model}
        sort="sort"
        class={isHeat ? "heat" : "board"}
      />
      <ul class="legend">
        <li>{index.mean.of.length ? t("order_mean", { mean: meanOf(index) }) : t("order_first")}</li>
        <li>{t("group_note")}</li>
        <li>{isHeat ? t("heat_note") : t("interval_note")}</li>
        {hasDrift && <li>{t("drift_note")}</li>}
      </ul>
      <details class="note">
        <summary>{t("details")}</summary>
        {index.mean.of.length > 0 && <p>{`${meanOf(index)}: ${index.mean.of.join(", ")}.`}</p>}
        {leftOut(index) && <p>{leftOut(index)}</p>}
        <p>{t("group_tip")}</p>
      </details>
    </>
  );
}

/** A column heading as people speak, in two lines. A tooltip has the full name of the evaluator and the version. */
function Heading({ column }: { column: Column }) {
  const { board, metric, title, label } = column;
  const official = board.official ? t("official") : t("not_official");
  const about = [
    (board.headline.length > 1 && metric) || "",
    board.limit > 0 && t("first_items", { n: board.limit }),
    board.asked > 0 && t("stopped_after", { n: board.asked }),
  ].filter(Boolean);
  return (
    <span class="heading" title={`${label}\n${t("version")}: ${board.version}\n${official}`}>
      <b>
        <bdi>{title}</bdi>
      </b>
      {about.length > 0 && (
        <small>
          <bdi>{about.join(" · ")}</bdi>
        </small>
      )}
    </span>
  );
}

function meanOf(index: Index): string {
  const n = index.mean.of.length;
  return n === 1 ? t("mean_over_one") : t("mean_over", { n });
}

/** The benchmarks that do not count for the mean, each with the reason. */
function leftOut(index: Index): string {
  const names = Object.entries(index.mean.leftOut).map(([name, why]) => `${name} (${word(why)})`);
  return names.length ? t("not_in_mean", { names: names.join("; ") }) : "";
}

function toCell(cell: Cell, column: Column): string {
  return href(["cell", cell.model, cell.benchmark], { board: column.board.label });
}

function heat(share: number | null | undefined): Record<string, string> | undefined {
  return share === null || share === undefined ? undefined : { "--heat": `${(6 + 54 * share).toFixed(1)}%` };
}

function Heat({ cell, column, share }: { cell: Cell | undefined; column: Column; share: number | null }) {
  if (!cell) return <span class="none">–</span>;
  const figure = cell.figures[column.metric];
  const { judged = 0, expected = 0 } = cell.coverage ?? {};
  return (
    <a href={toCell(cell, column)}>
      {share === null ? (
        <State text={figure?.text ?? cell.state} />
      ) : (
        <>
          <span class={figure?.best ? "best" : undefined}>{(100 * share).toFixed(1)}</span>
          <Drift of={figure} />
          {figure?.group && <span class="group"> {figure.group}</span>}
        </>
      )}
      {judged < expected && (
        <small>
          {judged}/{expected}
        </small>
      )}
    </a>
  );
}

/** Bars of one column, best first, with 95 % intervals. */
function Ranking({ index, columns }: { index: Index; columns: Column[] }) {
  const asked = route.value.query.get("of");
  const column = columns.find((one) => slug(one.label) === asked) ?? columns[0];
  const rows = useMemo(() => {
    if (!column) return [];
    const figures = [...cellsOf(index, column.number)].flatMap(([name, cell]) => {
      const figure = cell.figures[column.metric];
      return figure?.value == null ? [] : [{ name, figure, colour: lookOf(index, name).colour }];
    });
    return figures.sort((a, b) => (b.figure.value ?? 0) - (a.figure.value ?? 0));
  }, [index, column?.label]);
  if (!column || !rows.length) return null;
  const titled = (one: Column) => (one.board.headline.length > 1 ? `${one.title} · ${one.metric}` : one.title);
  return (
    <section class="card">
      <h2>{t("ranking")}</h2>
      <Choice
        label={t("benchmark")}
        value={slug(column.label)}
        groups={new Map([["", columns.map((one) => [slug(one.label), titled(one)] as [string, string])]])}
        onChange={(of) => change({ of })}
      />
      <Intervals
        rows={rows}
        x={titled(column)}
        label={`${titled(column)}: ${t("bars_note")}`}
        top={rows[0]?.figure.scale ?? 0}
      />
      <p class="facts">
        <a href={href(["benchmark", column.board.benchmark])}>{t("to_benchmark")}</a>
      </p>
    </section>
  );
}

function Problems({ index }: { index: Index }) {
  const withheld = index.cells.filter((cell) => cell.board !== null && cell.withheld);
  const without = index.cells.filter((cell) => cell.board === null);
  const { comparisons, unreadable } = index;
  if (!withheld.length && !without.length && !comparisons.length && !unreadable.length) return null;
  const line = (cell: Cell) => (
    <>
      <CellLink cell={cell} board={cell.board === null ? undefined : index.boards[cell.board]} /> ·{" "}
      <Name name={cell.benchmark} />: <Text text={cell.problem} />
    </>
  );
  return (
    <section class="card">
      {comparisons.length > 0 && (
        <>
          <h2>{t("comparisons")}</h2>
          <ul class="list">
            {comparisons.map(({ name, href }) => (
              <li key={href}>
                <a href={href}>
                  <Short name={name} />
                </a>
              </li>
            ))}
          </ul>
        </>
      )}
      {withheld.length > 0 && (
        <>
          <h2>{t("withheld_scores")}</h2>
          <ul class="list">
            {withheld.map((cell) => (
              <li key={`${cell.model}/${cell.benchmark}/${cell.board}`}>{line(cell)}</li>
            ))}
          </ul>
          <p class="note">{t("withheld_note")}</p>
        </>
      )}
      {without.length > 0 && (
        <>
          <h2>{t("without_result")}</h2>
          <ul class="list">
            {without.map((cell) => (
              <li key={`${cell.model}/${cell.benchmark}`}>
                {line(cell)} <span class="soft">({outcomes(cell)})</span>
              </li>
            ))}
          </ul>
        </>
      )}
      {unreadable.length > 0 && (
        <>
          <h2>{t("unreadable")}</h2>
          <ul class="list">
            {unreadable.map((one) => (
              <li key={one}>
                <Text text={one} />
              </li>
            ))}
          </ul>
        </>
      )}
    </section>
  );
}

/** The outcomes of a cell's items so far. */
function outcomes(cell: Cell): string {
  const counts = Object.entries(cell.outcomes ?? {}).map(([name, count]) => `${count} ${word(name)}`);
  return counts.join(", ") || t("no_items");
}
