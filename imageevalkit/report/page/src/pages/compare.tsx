import { useMemo } from "preact/hooks";
import { Bars } from "../charts/figure";
import type { Row } from "../charts/options";
import type { Board, Cell, Index } from "../data";
import { BoardFacts, CellLink, Choice, Name, Score, Short } from "../parts";
import { byName, cellsOf, lookOf, metricsOf, titlesOf } from "../results";
import { change, route, slug } from "../route";
import { type Column, Table } from "../table";
import { t } from "../words";

interface Both {
  board: Board;
  number: number;
  first: Cell;
  second: Cell;
}

export function Compare({ index }: { index: Index }) {
  const { query } = route.value;
  const a = byName(index.models, query.get("a")) ?? index.models[0];
  const b = byName(index.models, query.get("b")) ?? index.models.find((one) => one !== a);
  const groups = new Map([["", index.models.map(({ name }) => [slug(name), name] as [string, string])]]);
  const both =
    a && b
      ? index.boards.flatMap((board, number): Both[] => {
          const cells = cellsOf(index, number);
          const [first, second] = [cells.get(a.name), cells.get(b.name)];
          return first && second ? [{ board, number, first, second }] : [];
        })
      : [];
  return (
    <>
      <section class="card">
        <h1>{t("compare")}</h1>
        {a && b ? (
          <div class="choices">
            <Choice
              label={t("first_model")}
              value={slug(a.name)}
              groups={groups}
              onChange={(to) => change({ a: to })}
            />
            <Choice
              label={t("second_model")}
              value={slug(b.name)}
              groups={groups}
              onChange={(to) => change({ b: to })}
            />
            <button type="button" onClick={() => change({ a: slug(b.name), b: slug(a.name) })}>
              {t("swap")}
            </button>
          </div>
        ) : (
          <p class="note">{t("need_two_models")}</p>
        )}
        {a && b && both.length === 0 && <p class="note">{t("no_common_board")}</p>}
        <p class="note">{t("compare_note")}</p>
        {index.comparisons.length > 0 && (
          <>
            <h2>{t("comparisons")}</h2>
            <ul class="list">
              {index.comparisons.map(({ name, href }) => (
                <li key={href}>
                  <a href={href}>
                    <Short name={name} />
                  </a>
                </li>
              ))}
            </ul>
          </>
        )}
      </section>
      {both.map((one) => (
        <BothOf key={`${one.board.label}\n${a?.name}\n${b?.name}`} index={index} {...one} />
      ))}
    </>
  );
}

function BothOf({ index, board, number, first, second }: Both & { index: Index }) {
  const metrics = metricsOf(board);
  const there = metrics.some((metric) => first.figures[metric] && second.figures[metric]);
  const rows = useMemo(
    () =>
      [first, second].map(
        (cell): Row => ({
          name: cell.model,
          ...lookOf(index, cell.model),
          figures: board.headline.map((metric) => cell.figures[metric]),
        }),
      ),
    [index, board, first, second],
  );
  const difference = (metric: string) => {
    const [one, other] = [first.figures[metric]?.value, second.figures[metric]?.value];
    return one == null || other == null ? null : other - one;
  };
  const columns: Column<string>[] = [
    {
      key: "metric",
      head: t("metric"),
      value: (metric) => metric,
      cell: (metric) => (
        <>
          <Name name={metric} /> {board.headline.includes(metric) && <span class="pill">{t("headline")}</span>}
        </>
      ),
    },
    ...[first, second].map(
      (cell, n): Column<string> => ({
        key: "ab"[n] as string,
        head: <Short name={cell.model} />,
        value: (metric) => cell.figures[metric]?.value,
        cell: (metric) => <Score cell={cell} metric={metric} count />,
      }),
    ),
    {
      key: "difference",
      head: t("difference"),
      value: difference,
      cell: (metric) => {
        const by = difference(metric);
        if (by === null) return <span class="none">–</span>;
        const digits = (first.figures[metric]?.scale ?? 1) <= 1 ? 4 : 2;
        return (
          <>
            <span class="line">{`${by > 0 ? "+" : by < 0 ? "−" : ""}${Math.abs(by).toFixed(digits)}`}</span>{" "}
            {board.headline.includes(metric) && (
              <Verdict board={board} metric={metric} first={first} second={second} digits={digits} />
            )}
          </>
        );
      },
    },
  ];
  return (
    <section class="card">
      <h2 title={board.label}>
        <Name name={titlesOf(index)[number] ?? board.label} />
      </h2>
      <BoardFacts board={board} />
      <p class="facts">
        {[first, second].map((cell) => (
          <CellLink key={cell.model} cell={cell} board={board} />
        ))}
      </p>
      {there && board.headline.length > 0 && (
        <Bars metrics={board.headline} rows={rows} label={`${board.label}: ${t("headline")}`} />
      )}
      <Table
        label={board.label}
        rows={metrics}
        columns={columns}
        keyOf={(metric) => metric}
        sort="sort"
        class="metrics"
      />
    </section>
  );
}

interface VerdictProps {
  board: Board;
  metric: string;
  first: Cell;
  second: Cell;
  digits: number;
}

/** The paired test of two headline scores; for boards of many models, only whether their rank groups differ. */
function Verdict({ board, metric, first, second, digits }: VerdictProps) {
  const test = board.tests.find(
    (one) =>
      one.metric === metric &&
      [one.first, one.second].includes(first.model) &&
      [one.first, one.second].includes(second.model),
  );
  if (!test || test.p === null) {
    const [a, b] = [first.figures[metric]?.group, second.figures[metric]?.group];
    if (!a || !b) return null;
    const differs = ![...a].some((letter) => b.includes(letter));
    return <span class={differs ? "pill good" : "pill"}>{differs ? t("differs") : t("not_told")}</span>;
  }
  const ends = [test.low, test.high].flatMap((end) =>
    end === null ? [] : [test.second === second.model ? -end : end],
  );
  const interval = ends.sort((a, b) => a - b).map((end) => end.toFixed(digits).replace("-", "−"));
  return (
    <>
      {interval.length === 2 && <span class="interval">[{interval.join(", ")}] </span>}
      <span class={test.p < 0.05 ? "pill good" : "pill"}>
        {test.p < 0.05 ? t("differs") : t("not_told")} · p {test.p < 0.001 ? "< 0.001" : `= ${test.p.toFixed(3)}`}
      </span>
    </>
  );
}
