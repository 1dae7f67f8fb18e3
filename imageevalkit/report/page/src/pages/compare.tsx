import { useMemo } from "preact/hooks";
import { Bars } from "../charts/figure";
import type { Row } from "../charts/options";
import type { Board, Cell, Index } from "../data";
import { BoardFacts, CellLink, Choice, Name, Score, Short } from "../parts";
import { byName, cellsOf, lookOf, metricsOf } from "../results";
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

function BothOf({ index, board, first, second }: Both & { index: Index }) {
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
              <Verdict a={first.figures[metric]?.group} b={second.figures[metric]?.group} />
            )}
          </>
        );
      },
    },
  ];
  return (
    <section class="card">
      <h2>
        <Name name={board.label} />
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

/** Whether two headline scores can be told apart, by the letters of their rank groups. */
function Verdict({ a, b }: { a: string | undefined; b: string | undefined }) {
  if (!a || !b) return null;
  const told = ![...a].some((letter) => b.includes(letter));
  return <span class={told ? "pill good" : "pill"}>{told ? t("differs") : t("not_told")}</span>;
}
