import { useMemo } from "preact/hooks";
import { Curves } from "../charts/figure";
import type { Run } from "../charts/options";
import type { Curve, Index } from "../data";
import { CellLink, Choice, Score, Short } from "../parts";
import { look, named } from "../results";
import { change, route, slug } from "../route";
import { type Column, Table } from "../table";
import { t } from "../words";

export function CurvesPage({ index }: { index: Index }) {
  const labelOf = (curve: Curve) => {
    const board = index.boards[curve.board];
    return board ? named(board, curve.metric) : curve.metric;
  };
  const labels = [...new Set(index.curves.map(labelOf))];
  const asked = route.value.query.get("of");
  const label = labels.find((one) => slug(one) === asked) ?? labels[0];
  return (
    <section class="card">
      <h1>{t("curves")}</h1>
      {label === undefined ? (
        <p class="note">{t("no_curves")}</p>
      ) : (
        <>
          <Choice
            label={t("metric")}
            value={slug(label)}
            groups={new Map([["", labels.map((one) => [slug(one), one] as [string, string])]])}
            onChange={(of) => change({ of })}
          />
          <CurvesOf
            key={label}
            index={index}
            label={label}
            curves={index.curves.filter((one) => labelOf(one) === label)}
          />
        </>
      )}
    </section>
  );
}

function CurvesOf({ index, label, curves }: { index: Index; label: string; curves: Curve[] }) {
  // the label names the curves
  const runs = useMemo(
    () =>
      curves.map(
        ({ run, points, metric }, n): Run => ({
          name: run,
          colour: look(n).colour,
          points: points.flatMap(({ step, cell, told }) => {
            const figure = index.cells[cell]?.figures[metric];
            return figure && figure.value !== null ? [{ step, figure, told }] : [];
          }),
        }),
      ),
    [index, label],
  );
  const rows = curves.flatMap(({ run, points, metric }) => points.map((point) => ({ run, metric, ...point })));
  const columns: Column<(typeof rows)[number]>[] = [
    {
      key: "model",
      head: t("model"),
      value: ({ run, step }) => `${run}@${step}`,
      cell: ({ cell }) => {
        const found = index.cells[cell];
        return found && <CellLink cell={found} board={index.boards[found.board ?? -1]} />;
      },
    },
    { key: "step", head: t("step"), value: ({ step }) => step, cell: ({ step }) => step },
    {
      key: "score",
      head: <Short name={label} />,
      value: ({ cell, metric }) => index.cells[cell]?.figures[metric]?.value,
      cell: ({ cell, metric }) => <Score cell={index.cells[cell]} metric={metric} />,
    },
    {
      key: "told",
      head: t("against_before"),
      cell: ({ told }) =>
        told === null ? "–" : told ? <span class="pill good">◆ {t("differs")}</span> : t("not_told"),
    },
  ];
  return (
    <>
      <Curves runs={runs} y={label} />
      <p class="note">{t("curves_note")}</p>
      <Table label={label} rows={rows} columns={columns} keyOf={({ run, step }) => `${run}@${step}`} sort="sort" />
    </>
  );
}
