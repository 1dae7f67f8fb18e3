import { useMemo } from "preact/hooks";
import { Scatter } from "../charts/figure";
import type { Point } from "../charts/options";
import type { Index } from "../data";
import { Choice, Name, Score, Short } from "../parts";
import { cellsOf, columnsOf, lookOf, metricsOf, named } from "../results";
import { change, route, slug } from "../route";
import { type Column, Table } from "../table";
import { t } from "../words";
import { Relations } from "./relations";

/** The number of metrics among which the page chooses its first pair. */
const MOST_AXES = 40;

/** A metric of a board. */
interface Axis {
  number: number;
  metric: string;
  label: string;
}

function axesOf(index: Index): Axis[] {
  return index.boards.flatMap((board, number) =>
    metricsOf(board).map((metric) => ({ number, metric, label: named(board, metric) })),
  );
}

/** The axis that the address names under `key`, or the given one. */
function axis(axes: Axis[], key: string, otherwise: string | undefined): Axis | undefined {
  const asked = route.value.query.get(key) ?? slug(otherwise ?? "");
  return axes.find((one) => slug(one.label) === asked);
}

/** The two metrics with common values of most models; among equals, the first two. */
function mostCommon(index: Index, axes: Axis[]): (Axis | undefined)[] {
  const models = axes.map(({ number, metric }) => {
    const cells = [...cellsOf(index, number).values()];
    return new Set(cells.filter(({ figures }) => figures[metric]?.value != null).map(({ model }) => model));
  });
  let most = -1;
  let found: (Axis | undefined)[] = [axes[0]];
  models.slice(0, MOST_AXES).forEach((one, x) => {
    models.slice(x + 1, MOST_AXES).forEach((other, n) => {
      const common = [...one].filter((model) => other.has(model)).length;
      if (common > most) {
        most = common;
        found = [axes[x], axes[x + 1 + n]];
      }
    });
  });
  return found;
}

function choices(index: Index, axes: Axis[]): Map<string, [string, string][]> {
  return new Map(
    index.boards.map((board, number) => [
      board.label,
      axes.filter((one) => one.number === number).map((one) => [slug(one.label), one.label]),
    ]),
  );
}

export function TradeOffs({ index }: { index: Index }) {
  const axes = axesOf(index);
  const headlines = columnsOf(index).filter((column) => column.metric);
  const [first, second] = mostCommon(index, headlines.length > 1 ? headlines : axes);
  const x = axis(axes, "x", first?.label);
  const y = axis(axes, "y", second?.label);
  return (
    <>
      <section class="card">
        <h1>{t("tradeoffs")}</h1>
        {x && y ? <Chosen index={index} axes={axes} x={x} y={y} /> : <p class="note">{t("need_two_metrics")}</p>}
      </section>
      {index.relations.length > 0 && (
        <section class="card">
          <h2>{t("relations")}</h2>
          {index.boards.map((board, number) => {
            const maps = index.relations.filter((map) => index.cells[map.cell]?.board === number);
            return (
              maps.length > 0 && (
                <div key={board.label}>
                  <h3>
                    <Name name={board.label} />
                  </h3>
                  <Relations index={index} maps={maps} />
                </div>
              )
            );
          })}
        </section>
      )}
    </>
  );
}

function Chosen({ index, axes, x, y }: { index: Index; axes: Axis[]; x: Axis; y: Axis }) {
  const [xs, ys] = [cellsOf(index, x.number), cellsOf(index, y.number)];
  const groups = choices(index, axes);
  const both = index.models.map(({ name }) => name).filter((name) => xs.has(name) && ys.has(name));
  const points = useMemo(
    () =>
      both.flatMap((name): Point[] => {
        const [first, second] = [xs.get(name)?.figures[x.metric], ys.get(name)?.figures[y.metric]];
        if (first?.value == null || second?.value == null) return [];
        return [{ name, ...lookOf(index, name), x: first, y: second }];
      }),
    [index, x.label, y.label],
  );
  const columns: Column<string>[] = [
    { key: "model", head: t("model"), value: (name) => name, cell: (name) => <Name name={name} /> },
    ...[
      { key: "x", of: xs, one: x },
      { key: "y", of: ys, one: y },
    ].map(({ key, of, one }) => ({
      key,
      head: <Short name={one.label} />,
      value: (name: string) => of.get(name)?.figures[one.metric]?.value,
      cell: (name: string) => <Score cell={of.get(name)} metric={one.metric} />,
    })),
  ];
  return (
    <>
      <div class="choices">
        <Choice label={t("across")} value={slug(x.label)} groups={groups} onChange={(to) => change({ x: to })} />
        <Choice label={t("up")} value={slug(y.label)} groups={groups} onChange={(to) => change({ y: to })} />
        <button type="button" onClick={() => change({ x: slug(y.label), y: slug(x.label) })}>
          {t("swap")}
        </button>
      </div>
      {points.length ? <Scatter points={points} x={x.label} y={y.label} /> : <p class="note">{t("no_common_model")}</p>}
      <Table label={t("tradeoffs")} rows={both} columns={columns} keyOf={(name) => name} sort="sort" />
    </>
  );
}
