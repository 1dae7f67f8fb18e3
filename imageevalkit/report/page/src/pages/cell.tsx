import type { Cell, Index, Word } from "../data";
import { BoardFacts, CoverageBar, dollars, Name, Pairs, Score, Short, State, seconds, Text } from "../parts";
import { metricsOf, titleOf } from "../results";
import { href, route, slug } from "../route";
import { type Column, Table } from "../table";
import { t, word } from "../words";
import { Extremes } from "./pictures";
import { Relations } from "./relations";

/** `cells` are the results of one model on one benchmark, each by another evaluator, or one cell without a result. */
export function CellPage({ index, cells }: { index: Index; cells: [Cell, ...Cell[]] }) {
  const boardOf = (one: Cell) => (one.board === null ? undefined : index.boards[one.board]);
  const asked = route.value.query.get("board");
  const cell = cells.find((one) => slug(boardOf(one)?.label ?? "") === asked) ?? cells[0];
  const board = boardOf(cell);
  const { model, benchmark, coverage, failures, evaluator, provenance } = cell;
  const maps = index.relations.filter((map) => index.cells[map.cell] === cell);
  const metrics = board ? metricsOf(board).filter((metric) => cell.figures[metric]) : [];
  return (
    <>
      <section class="card">
        <h1>
          <Name name={model} /> · <Name name={titleOf(index, benchmark)} />
        </h1>
        {cells.length > 1 && (
          <nav class="others" aria-label={t("evaluator")}>
            {cells.map((one) => (
              <a
                key={one.board}
                href={href(["cell", model, benchmark], { board: boardOf(one)?.label ?? "" })}
                aria-current={one === cell ? "page" : undefined}
              >
                <Short name={boardOf(one)?.label ?? t("without_result")} />
              </a>
            ))}
          </nav>
        )}
        {board && <BoardFacts board={board} />}
        <p class="facts">
          {cell.state && <State text={cell.state} />}
          <a href={href(["benchmark", benchmark])}>{t("to_benchmark")}</a>
          {cell.folder && <a href={href(["gallery", benchmark])}>{t("gallery")}</a>}
        </p>
        {cell.problem && (
          <p class="problem">
            <Text text={cell.problem} />
          </p>
        )}
        {cell.notes.map((note) => (
          <p class="note" key={note}>
            <Text text={note} />
          </p>
        ))}
        {metrics.length > 0 && (
          <>
            <h2>{t("metrics")}</h2>
            <Metrics cell={cell} metrics={metrics} />
          </>
        )}
        {coverage && (
          <>
            <h2>{t("coverage")}</h2>
            <CoverageBar coverage={coverage} />
            <p class="note">{t("treatment", { name: cell.treatment })}</p>
          </>
        )}
        {!coverage && cell.outcomes && <Pairs of={numbered(cell.outcomes)} />}
      </section>
      {board && metrics[0] && <Extremes cell={cell} metric={metrics[0]} />}
      <section class="card">
        <h2>{t("failures")}</h2>
        {failures.length ? <Failures cell={cell} /> : <p class="note">{t("no_failures")}</p>}
      </section>
      <section class="card">
        <h2>{t("cost_and_speed")}</h2>
        <Costs cell={cell} />
      </section>
      {cell.words && (
        <section class="card">
          <h2>{t("judge_words")}</h2>
          <Words words={cell.words} />
        </section>
      )}
      {maps.length > 0 && (
        <section class="card">
          <h2>{t("relations")}</h2>
          <Relations index={index} maps={maps} />
        </section>
      )}
      <section class="card">
        <h2>{t("how_measured")}</h2>
        <h3>{t("evaluator")}</h3>
        <Pairs of={evaluator} />
        <h3>{t("provenance")}</h3>
        <Pairs of={provenance} />
      </section>
    </>
  );
}

function numbered(counts: Record<string, number>): Record<string, string> {
  return Object.fromEntries(Object.entries(counts).map(([name, count]) => [name, String(count)]));
}

function Metrics({ cell, metrics }: { cell: Cell; metrics: string[] }) {
  const columns: Column<string>[] = [
    { key: "metric", head: t("metric"), value: (metric) => metric, cell: (metric) => <Name name={metric} /> },
    {
      key: "value",
      head: t("score"),
      value: (metric) => cell.figures[metric]?.value,
      cell: (metric) => <Score cell={cell} metric={metric} detail />,
    },
    { key: "scale", head: t("scale"), cell: (metric) => cell.figures[metric]?.scale },
    { key: "n", head: "n", value: (metric) => cell.figures[metric]?.n, cell: (metric) => cell.figures[metric]?.n },
  ];
  return <Table label={t("metrics")} rows={metrics} columns={columns} keyOf={(metric) => metric} sort="sort" />;
}

function Failures({ cell }: { cell: Cell }) {
  type Failure = Cell["failures"][number];
  const columns: Column<Failure>[] = [
    { key: "outcome", head: t("outcome"), cell: ({ outcome }) => word(outcome) },
    { key: "count", head: t("items"), cell: ({ count }) => count },
    { key: "error", head: t("reason"), cell: ({ error }) => <Text text={error} /> },
    {
      key: "items",
      head: t("examples"),
      cell: ({ items }) =>
        items.map((item) => (
          <a key={item} class="item" href={href(["gallery", cell.benchmark], { item, model: cell.model })}>
            <Short name={item} />
          </a>
        )),
    },
  ];
  return (
    <Table
      label={t("failures")}
      rows={cell.failures}
      columns={columns}
      keyOf={({ outcome, error }) => `${outcome}\n${error}`}
    />
  );
}

function Words({ words }: { words: Word[] }) {
  const all = words.reduce((sum, { count }) => sum + count, 0);
  const columns: Column<Word>[] = [
    { key: "value", head: t("answer"), cell: ({ value }) => (value ? <Text text={value} /> : t("any_other")) },
    { key: "count", head: t("times"), cell: ({ count }) => count },
    { key: "share", head: "%", cell: ({ count }) => ((100 * count) / all).toFixed(1) },
  ];
  return <Table label={t("judge_words")} rows={words} columns={columns} keyOf={({ value }) => value} />;
}

function Costs({ cell }: { cell: Cell }) {
  const { generation_usd, judge_usd, usd_per_image, seconds_per_image } = cell.cost;
  const known = Object.entries({
    [t("generation_usd")]: dollars(generation_usd),
    [t("judge_usd")]: dollars(judge_usd),
    [t("usd_per_image")]: dollars(usd_per_image),
    [t("seconds_per_image")]: seconds_per_image === null ? "" : seconds(seconds_per_image),
  }).filter(([, value]) => value);
  return known.length ? <Pairs of={Object.fromEntries(known)} /> : <p class="note">{t("no_cost")}</p>;
}
