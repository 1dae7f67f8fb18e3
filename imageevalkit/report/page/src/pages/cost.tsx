import { useMemo } from "preact/hooks";
import { Scatter } from "../charts/figure";
import { type Point, plain } from "../charts/options";
import type { Cell, Index } from "../data";
import { CellLink, Choice, dollars, Score, seconds } from "../parts";
import { cellsOf, columnsOf, type Column as Headline, lookOf } from "../results";
import { change, route, slug } from "../route";
import { type Column, Table } from "../table";
import { t } from "../words";

const NO_FRONT: Point[] = [];

export function Cost({ index }: { index: Index }) {
  const columns = columnsOf(index).filter((column) => column.metric);
  const asked = route.value.query.get("of");
  const isPriced = ({ number, metric }: Headline) =>
    [...cellsOf(index, number).values()].some(
      ({ cost, figures }) =>
        figures[metric]?.value != null && (cost.usd_per_image !== null || cost.seconds_per_image !== null),
    );
  const column = columns.find((one) => slug(one.label) === asked) ?? columns.find(isPriced) ?? columns[0];
  if (!column)
    return (
      <section class="card">
        <h1>{t("cost")}</h1>
        <p class="note">{t("no_results")}</p>
      </section>
    );
  return <CostOf key={column.label} index={index} column={column} columns={columns} />;
}

function CostOf({ index, column, columns }: { index: Index; column: Headline; columns: Headline[] }) {
  const { board, number, metric, label } = column;
  const cells = [...cellsOf(index, number).values()];
  const { price, time } = useMemo(() => {
    const of = (key: "usd_per_image" | "seconds_per_image", text: (value: number) => string) =>
      cells.flatMap((cell): Point[] => {
        const [value, y] = [cell.cost[key], cell.figures[metric]];
        if (value === null || y?.value == null) return [];
        return [{ name: cell.model, ...lookOf(index, cell.model), x: plain(value, text(value)), y }];
      });
    return { price: of("usd_per_image", dollars), time: of("seconds_per_image", seconds) };
  }, [index, label]);
  const fronts = useMemo(() => ({ price: frontOf(price), time: frontOf(time) }), [price, time]);
  const isOn = (front: Point[], cell: Cell) => front.some((point) => point.name === cell.model);
  const heads: Column<Cell>[] = [
    {
      key: "model",
      head: t("model"),
      value: (cell) => cell.model,
      cell: (cell) => <CellLink cell={cell} board={board} />,
    },
    {
      key: "score",
      head: <bdi>{metric}</bdi>,
      value: (cell) => cell.figures[metric]?.value,
      cell: (cell) => <Score cell={cell} metric={metric} />,
    },
    ...(
      [
        ["usd_per_image", dollars, fronts.price],
        ["seconds_per_image", seconds, fronts.time],
        ["generation_usd", dollars, NO_FRONT],
        ["judge_usd", dollars, NO_FRONT],
      ] as const
    ).map(([key, text, front]) => ({
      key,
      head: t(key),
      value: (cell: Cell) => cell.cost[key],
      cell: (cell: Cell) => (
        <>
          {text(cell.cost[key]) || <span class="none">–</span>}
          {isOn(front, cell) && " "}
          {isOn(front, cell) && <span class="pill good">{t("on_front")}</span>}
        </>
      ),
    })),
  ];
  return (
    <section class="card">
      <h1>{t("cost")}</h1>
      <Choice
        label={t("quality")}
        value={slug(label)}
        groups={new Map([["", columns.map((one) => [slug(one.label), one.label] as [string, string])]])}
        onChange={(of) => change({ of })}
      />
      <div class="beside">
        <div>
          <h2>{t("against_price")}</h2>
          {price.length ? (
            <Scatter points={price} x={t("usd_per_image")} y={label} front={fronts.price} />
          ) : (
            <p class="note">{t("no_price")}</p>
          )}
        </div>
        <div>
          <h2>{t("against_time")}</h2>
          {time.length ? (
            <Scatter points={time} x={t("seconds_per_image")} y={label} front={fronts.time} />
          ) : (
            <p class="note">{t("no_time")}</p>
          )}
        </div>
      </div>
      <p class="note">{t("front_note")}</p>
      <Table label={t("cost")} rows={cells} columns={heads} keyOf={(cell) => cell.model} sort="sort" />
    </section>
  );
}

/** The points that no other point beats at the same or a lower x, by x: the Pareto front. */
export function frontOf(points: Point[]): Point[] {
  const byCost = [...points].sort((a, b) => (a.x.value ?? 0) - (b.x.value ?? 0) || (b.y.value ?? 0) - (a.y.value ?? 0));
  let best = Number.NEGATIVE_INFINITY;
  return byCost.filter((point) => {
    const isBetter = (point.y.value ?? best) > best;
    if (isBetter) best = point.y.value as number;
    return isBetter;
  });
}
