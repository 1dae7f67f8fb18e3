import type { Cell, Index } from "../data";
import { BoardFacts, CellLink, Drift, Name, Score, Short, State, Text } from "../parts";
import { type Column, cellsOf, columnsOf, shareOf } from "../results";
import { href } from "../route";
import { type Column as Head, Table } from "../table";
import { t, word } from "../words";

interface Row {
  model: string;
  overall: number | null;
  /** By number of board. */
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
        <h1>{t("overview")}</h1>
        <p class="facts">
          <span>{t("counts", { models: rows.length, benchmarks, cells: index.cells.length })}</span>
          <span>
            {t("made")} <time dateTime={index.made}>{index.made.slice(0, 16).replace("T", " ")}</time>
          </span>
          <span>ImageEvalKit {index.version}</span>
        </p>
        {columns.length ? (
          <HeatMap rows={rows} columns={columns} index={index} />
        ) : (
          <p class="note">{t("no_results")}</p>
        )}
      </section>
      {columns.length > 0 && <Leaderboard rows={rows} columns={columns} />}
      <Problems index={index} />
    </>
  );
}

function heads(columns: Column[], value: (row: Row, column: Column) => number | null | undefined) {
  return columns.map(
    (column, number): Head<Row> => ({
      key: String(number),
      head: <Heading column={column} />,
      value: (row) => value(row, column),
      cell: () => null,
    }),
  );
}

/** A label may break where its parts meet, so that a column is not as wide as its name. */
function Heading({ column }: { column: Column }) {
  const { board, metric } = column;
  return (
    <span class="heading" title={column.label}>
      <b>
        <bdi>{board.benchmark}</bdi>
      </b>
      {(board.headline.length > 1 || board.rewriter) && (
        <bdi>{[metric, board.rewriter && `+${board.rewriter}`].filter(Boolean).join(" ")}</bdi>
      )}
      <small>
        <bdi>{board.evaluator}</bdi>
        {board.limit > 0 && ` · ${t("first_items", { n: board.limit })}`}
        {board.asked > 0 && ` · ${t("stopped_after", { n: board.asked })}`}
      </small>
    </span>
  );
}

function meanOf(index: Index): string {
  const n = index.mean.of.length;
  return n === 1 ? t("mean_over_one") : t("mean_over", { n });
}

/** How the models are ordered, and which benchmarks do not count. */
function orderOf(index: Index): string {
  const { of, leftOut } = index.mean;
  const names = Object.entries(leftOut).map(([name, why]) => `${name} (${word(why)})`);
  const order = of.length ? t("order_mean", { mean: meanOf(index), of: of.join(", ") }) : t("order_first");
  return names.length ? `${order} ${t("not_in_mean", { names: names.join("; ") })}` : order;
}

function HeatMap({ rows, columns, index }: { rows: Row[]; columns: Column[]; index: Index }) {
  const share = (row: Row, column: Column) => shareOf(row.cells.get(column.number)?.figures[column.metric]);
  const percent = (value: number) => (100 * value).toFixed(1);
  const mean: Head<Row> = {
    key: "mean",
    head: meanOf(index),
    value: (row) => row.overall,
    cell: (row) => (row.overall === null ? <span class="none">–</span> : <b>{percent(row.overall)}</b>),
    style: (row) => heat(row.overall),
  };
  const all: Head<Row>[] = [
    { key: "model", head: t("model"), value: (row) => row.model, cell: (row) => <Name name={row.model} /> },
    ...(index.mean.of.length ? [mean] : []),
    ...heads(columns, share).map((head, n) => {
      const column = columns[n] as Column;
      return {
        ...head,
        style: (row: Row) => heat(share(row, column)),
        cell: (row: Row) => <Heat cell={row.cells.get(column.number)} column={column} share={share(row, column)} />,
      };
    }),
  ];
  return (
    <>
      <h2>{t("heat_map")}</h2>
      <Table label={t("heat_map")} rows={rows} columns={all} keyOf={(row) => row.model} sort="heat" class="heat" />
      <p class="note">
        {orderOf(index)} {t("heat_note")}
      </p>
    </>
  );
}

function heat(share: number | null | undefined): Record<string, string> | undefined {
  return share === null || share === undefined ? undefined : { "--heat": `${(6 + 54 * share).toFixed(1)}%` };
}

function Heat({ cell, column, share }: { cell: Cell | undefined; column: Column; share: number | null }) {
  if (!cell) return <span class="none">–</span>;
  const figure = cell.figures[column.metric];
  const { judged = 0, expected = 0 } = cell.coverage ?? {};
  return (
    <a href={href(["cell", cell.model, cell.benchmark], { board: column.board.label })}>
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

function Leaderboard({ rows, columns }: { rows: Row[]; columns: Column[] }) {
  const value = (row: Row, column: Column) => row.cells.get(column.number)?.figures[column.metric]?.value;
  const all: Head<Row>[] = [
    { key: "model", head: t("model"), value: (row) => row.model, cell: (row) => <Name name={row.model} /> },
    ...heads(columns, value).map((head, n) => {
      const column = columns[n] as Column;
      return {
        ...head,
        cell: (row: Row) => <Score cell={row.cells.get(column.number)} metric={column.metric} detail />,
      };
    }),
  ];
  return (
    <section class="card">
      <h2>{t("leaderboard")}</h2>
      <Table label={t("leaderboard")} rows={rows} columns={all} keyOf={(row) => row.model} sort="board" class="board" />
      <p class="note">
        {t("best_note")} {t("group_note")} {t("drift_note")} {t("interval_note")} {t("board_note")}
      </p>
      <h3>{t("benchmarks")}</h3>
      <ul class="list">
        {columns
          .filter((column, n) => columns.findIndex((other) => other.number === column.number) === n)
          .map(({ board, number }) => (
            <li key={number}>
              <a href={href(["benchmark", board.benchmark])}>
                <Short name={board.label} />
              </a>
              <BoardFacts board={board} />
            </li>
          ))}
      </ul>
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

/** What became of a cell's items so far. */
function outcomes(cell: Cell): string {
  const counts = Object.entries(cell.outcomes ?? {}).map(([name, count]) => `${count} ${word(name)}`);
  return counts.join(", ") || t("no_items");
}
