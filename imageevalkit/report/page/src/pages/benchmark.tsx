import { useMemo } from "preact/hooks";
import { Bars, isRadar, Radar } from "../charts/figure";
import type { Row } from "../charts/options";
import type { Board, Cell, Index } from "../data";
import { BoardFacts, CellLink, Choice, CoverageBar, Name, Score, Short, State, Text } from "../parts";
import { cellsOf, lookOf } from "../results";
import { change, choose, chosen, href, route } from "../route";
import { type Column, Table } from "../table";
import { t } from "../words";
import { Relations } from "./relations";

/** The number of models that are chosen at first: charts of more are hard to read. */
const FIRST = 6;

const CHARTS = ["bars", "radar"] as const;

export function BenchmarkPage({ index, name }: { index: Index; name: string }) {
  const models = index.models
    .map((model) => model.name)
    .filter((model) => index.cells.some((cell) => cell.benchmark === name && cell.model === model));
  const picked = chosen("models", models, models.slice(0, FIRST));
  const boards = index.boards.flatMap((board, number) => (board.benchmark === name ? [{ board, number }] : []));
  const without = index.cells.filter((cell) => cell.benchmark === name && cell.board === null);
  const shown = index.benchmarks.find((one) => one.name === name);
  return (
    <>
      <section class="card">
        <h1>
          <Name name={name} />
        </h1>
        <nav class="others" aria-label={t("benchmarks")}>
          {index.benchmarks.map((one) => (
            <a
              key={one.name}
              href={href(["benchmark", one.name])}
              aria-current={one.name === name ? "page" : undefined}
            >
              <Short name={one.name} />
            </a>
          ))}
        </nav>
        {shown && shown.prompts > 0 && (
          <p>
            <a href={href(["gallery", name])}>{t("to_gallery", { n: shown.prompts })}</a>
          </p>
        )}
        {without.map((cell) => (
          <p class="note" key={cell.model}>
            <CellLink cell={cell} board={undefined} />: <Text text={cell.problem} />
          </p>
        ))}
        <fieldset class="models">
          <legend>{t("side_by_side")}</legend>
          {models.map((model) => (
            <label key={model}>
              <input
                type="checkbox"
                checked={picked.includes(model)}
                onChange={(event) =>
                  choose(
                    "models",
                    models.filter((one) => (one === model ? event.currentTarget.checked : picked.includes(one))),
                  )
                }
              />
              <i class="swatch" style={{ background: lookOf(index, model).colour }} />
              <Short name={model} />
            </label>
          ))}
        </fieldset>
        {boards.some(({ board }) => board.breakdowns.some(({ metrics }) => isRadar(metrics.length))) && (
          <Choice
            label={t("chart")}
            value={route.value.query.get("chart") ?? ""}
            groups={new Map([["", CHARTS.map((chart) => [chart === "bars" ? "" : chart, t(chart)])]])}
            onChange={(chart) => change({ chart })}
          />
        )}
      </section>
      {boards.map(({ board, number }) => (
        <BoardCard key={board.label} index={index} board={board} number={number} models={picked} />
      ))}
    </>
  );
}

function BoardCard({ index, board, number, models }: { index: Index; board: Board; number: number; models: string[] }) {
  const of = cellsOf(index, number);
  const cells = models.flatMap((model) => of.get(model) ?? []);
  const relations = index.relations.filter((map) => cells.some((cell) => index.cells[map.cell] === cell));
  return (
    <section class="card">
      <h2>
        <Name name={board.label} />
      </h2>
      <BoardFacts board={board} />
      {cells.length === 0 && <p class="note">{t("none_chosen")}</p>}
      {cells.length > 0 && (
        <>
          <h3>{t("coverage")}</h3>
          <ul class="coverages">
            {cells.map((cell) => (
              <li key={cell.model}>
                <CellLink cell={cell} board={board} />
                {cell.coverage && <CoverageBar coverage={cell.coverage} />}
                {cell.state && <State text={cell.state} />}
                {(cell.withheld || cell.notes.length > 0) && (
                  <p class="note">
                    <Text text={[cell.withheld ? cell.problem : "", ...cell.notes].filter(Boolean).join("; ")} />
                  </p>
                )}
              </li>
            ))}
          </ul>
          <Breakdown index={index} name={t("headline")} metrics={board.headline} cells={cells} board={board} />
          {Object.keys(board.smallest).length > 0 && (
            <p class="note">
              {t("smallest")}{" "}
              {Object.entries(board.smallest).map(([metric, least], n) => (
                <span key={metric}>
                  {n > 0 && ", "}
                  <bdi>{metric}</bdi> {least.toPrecision(2)}
                </span>
              ))}
              . {t("smallest_note")}
            </p>
          )}
          {board.breakdowns.map(({ name, metrics }) => (
            <Breakdown key={name} index={index} name={name} metrics={metrics} cells={cells} board={board} />
          ))}
          {relations.length > 0 && (
            <>
              <h3>{t("relations")}</h3>
              <Relations index={index} maps={relations} />
            </>
          )}
        </>
      )}
    </section>
  );
}

interface BreakdownProps {
  index: Index;
  /** The first part of the names of metrics, before a slash; "": the benchmark's first breakdown. */
  name: string;
  metrics: string[];
  cells: Cell[];
  board: Board;
}

function Breakdown({ index, name, metrics, cells, board }: BreakdownProps) {
  const names = cells.map((cell) => cell.model).join("\n");
  // cells with the same names are the same
  const rows = useMemo(
    () =>
      cells
        .filter((cell) => metrics.some((metric) => cell.figures[metric]))
        .map(
          (cell): Row => ({
            name: cell.model,
            ...lookOf(index, cell.model),
            figures: metrics.map((metric) => cell.figures[metric]),
          }),
        ),
    [index, metrics, names],
  );
  const short = (metric: string) => (name && metric.startsWith(`${name}/`) ? metric.slice(name.length + 1) : metric);
  const shorts = useMemo(() => metrics.map(short), [metrics, name]);
  if (!metrics.length) return null;
  const columns: Column<string>[] = [
    { key: "metric", head: t("metric"), value: (metric) => metric, cell: (metric) => <Name name={short(metric)} /> },
    ...cells.map(
      (cell, n): Column<string> => ({
        key: String(n),
        head: (
          <>
            <i class="swatch" style={{ background: lookOf(index, cell.model).colour }} /> <Short name={cell.model} />
          </>
        ),
        value: (metric) => cell.figures[metric]?.value,
        cell: (metric) => <Score cell={cell} metric={metric} count />,
      }),
    ),
  ];
  const label = `${board.label}: ${name || t("metrics")}`;
  const asRadar = route.value.query.get("chart") === "radar" && isRadar(metrics.length);
  return (
    <>
      <h3>
        <Name name={name || t("metrics")} />
      </h3>
      <div class="beside">
        {rows.length > 0 &&
          (asRadar ? (
            <Radar metrics={shorts} rows={rows} label={label} />
          ) : (
            <Bars metrics={shorts} rows={rows} label={label} />
          ))}
        <Table label={label} rows={metrics} columns={columns} keyOf={(metric) => metric} class="metrics" />
      </div>
    </>
  );
}
