// The options of ECharts for bars, radar, scatter and curves of figures with intervals.
import type { CustomSeriesOption, CustomSeriesRenderItem, EChartsOption, SeriesOption } from "echarts";
import type { Figure } from "../data";
import { cut } from "../parts";
import type { Style } from "./chart";

/** A model (or another thing) with a figure for each metric. */
export interface Row {
  name: string;
  colour: string;
  symbol: string;
  figures: (Figure | undefined)[];
}

/** A point with an interval in each direction, if there is one. */
export interface Point {
  name: string;
  colour: string;
  symbol: string;
  x: Figure;
  y: Figure;
}

/** A number that is no score: a price, a duration. */
export function plain(value: number, text: string): Figure {
  return { value, text, interval: "", low: null, high: null, n: 0, scale: 0 };
}

const MARGIN = { left: 12, right: 24, top: 14, bottom: 12, outerBoundsMode: "same" as const };

/** The lines of a tooltip, each a name with its value. Text nodes, because names come from other people. */
function lines(heading: string, all: [string, string][]): HTMLElement {
  const box = document.createElement("div");
  const bold = document.createElement("b");
  bold.dir = "auto";
  bold.textContent = cut(heading, 60);
  box.append(bold);
  for (const [name, value] of all) {
    const line = document.createElement("div");
    const of = document.createElement("bdi");
    of.textContent = cut(name, 44);
    line.append(of, `: ${value}`);
    box.append(line);
  }
  return box;
}

function said(figure: Figure | undefined): string {
  return figure ? `${figure.text} ${figure.interval}`.trim() : "–";
}

function tooltip(style: Style) {
  return {
    confine: true,
    backgroundColor: style.card,
    borderColor: style.line,
    textStyle: { color: style.ink, fontSize: 12 },
  };
}

function valueAxis(style: Style, name: string, rest: object = {}) {
  return {
    type: "value" as const,
    name: name && cut(name, 90),
    nameLocation: "middle" as const,
    nameTruncate: { maxWidth: style.width - 120, ellipsis: " …" },
    nameTextStyle: { color: style.ink },
    axisLabel: { color: style.soft, hideOverlap: true },
    axisLine: { show: true, lineStyle: { color: style.soft } },
    splitLine: { lineStyle: { color: style.line } },
    ...rest,
  };
}

/** The scale of all figures; 0 if they have several: then each figure is shown as a share of its scale. */
export function scaleOf(rows: Row[]): number {
  const scales = new Set(rows.flatMap((row) => row.figures.flatMap((figure) => (figure ? [figure.scale] : []))));
  return scales.size === 1 ? ([...scales][0] ?? 0) : 0;
}

function shown(value: number | null, figure: Figure, scale: number): number | null {
  return value === null || scale || !figure.scale ? value : value / figure.scale;
}

/**
 * The whiskers of a series, each as [place on the other axis, low, high]. `along` is the axis of the interval. `bar` is the
 * number of the bar below the whiskers, and the number of all bars.
 */
function whiskers(
  data: number[][],
  along: "x" | "y",
  style: Style,
  bar?: { count: number; place: number },
): CustomSeriesOption {
  const lying = along === "x";
  const renderItem: CustomSeriesRenderItem = (_, api) => {
    const place = api.value(0) as number;
    const end = (dimension: number) => {
      const value = api.value(dimension) as number;
      const [x = 0, y = 0] = api.coord?.(lying ? [value, place] : [place, value]) ?? [];
      return { x, y };
    };
    const shift = bar ? (api.barLayout?.({ count: bar.count, ...BARS })?.[bar.place]?.offsetCenter ?? 0) : 0;
    const [low, high] = [end(1), end(2)];
    const [dx, dy] = lying ? [0, 3] : [3, 0];
    const line = (x1: number, y1: number, x2: number, y2: number) => ({
      type: "line" as const,
      shape: { x1, y1: y1 + shift, x2, y2: y2 + shift },
      style: { stroke: style.ink, lineWidth: 1.25 },
    });
    return {
      type: "group",
      children: [
        line(low.x, low.y, high.x, high.y),
        line(low.x - dx, low.y - dy, low.x + dx, low.y + dy),
        line(high.x - dx, high.y - dy, high.x + dx, high.y + dy),
      ],
    };
  };
  const encode = lying ? { x: [1, 2], y: 0 } : { x: 0, y: [1, 2] };
  return { type: "custom", renderItem, data, encode, silent: true, z: 5, clip: true };
}

// wide enough for many models; equal for bars and their whiskers
const BARS = { barGap: "12%", barCategoryGap: "28%", barMaxWidth: 16 } as const;

/** The room for a bar of each model for each metric. */
export function barsHeight(metrics: number, models: number): number {
  return 64 + metrics * (Math.max(models, 1) * 13 + 14);
}

export function bars(metrics: string[], rows: Row[], style: Style): EChartsOption {
  const scale = scaleOf(rows);
  const series = rows.flatMap((row, place): SeriesOption[] => {
    const figures = row.figures.map((figure) => figure ?? plain(Number.NaN, "–"));
    const ends = figures.flatMap((figure, n) => {
      const low = shown(figure.low, figure, scale);
      const high = shown(figure.high, figure, scale);
      return low === null || high === null ? [] : [[n, low, high]];
    });
    return [
      {
        type: "bar",
        name: row.name,
        data: figures.map((figure) => shown(figure.value, figure, scale)),
        itemStyle: { color: row.colour },
        ...BARS,
      },
      whiskers(ends, "x", style, { count: rows.length, place }),
    ];
  });
  return {
    grid: MARGIN,
    tooltip: {
      ...tooltip(style),
      trigger: "axis",
      axisPointer: { type: "shadow" },
      formatter: (given) => {
        const number = (Array.isArray(given) ? given[0] : given)?.dataIndex ?? 0;
        return lines(
          metrics[number] ?? "",
          rows.map((row) => [row.name, said(row.figures[number])]),
        );
      },
    },
    xAxis: valueAxis(style, "", scale ? { min: 0, max: scale } : { min: 0, max: 1 }),
    yAxis: {
      type: "category",
      data: metrics,
      inverse: true,
      axisTick: { show: false },
      axisLine: { lineStyle: { color: style.soft } },
      axisLabel: { color: style.ink, width: style.width < 500 ? 96 : 170, overflow: "truncate", interval: 0 },
    },
    series,
  };
}

export function radar(metrics: string[], rows: Row[], style: Style): EChartsOption {
  return {
    tooltip: {
      ...tooltip(style),
      formatter: (given) => {
        const one = Array.isArray(given) ? given[0] : given;
        const row = rows[one?.dataIndex ?? 0];
        return lines(
          row?.name ?? "",
          metrics.map((metric, n) => [metric, said(row?.figures[n])]),
        );
      },
    },
    radar: {
      radius: style.width < 500 ? "52%" : "66%",
      indicator: metrics.map((name) => ({ name, min: 0, max: 1 })),
      axisName: { color: style.ink, width: style.width < 500 ? 76 : 120, overflow: "truncate" },
      axisLine: { lineStyle: { color: style.line } },
      splitLine: { lineStyle: { color: style.line } },
      splitArea: { show: false },
      splitNumber: 4,
    },
    series: [
      {
        type: "radar",
        data: rows.map((row) => ({
          name: row.name,
          // a share of the scale, because a radar has one scale
          value: row.figures.map((figure) => (figure?.value == null ? 0 : figure.value / (figure.scale || 1))),
          symbol: row.symbol,
          symbolSize: 6,
          itemStyle: { color: row.colour },
          lineStyle: { color: row.colour, width: 2 },
          areaStyle: { color: row.colour, opacity: 0.06 },
        })),
      },
    ],
  };
}

/** `front`: the names of points, in the order of x, that a line joins. */
export function scatter(points: Point[], x: string, y: string, style: Style, front: Point[] = []): EChartsOption {
  const all = points.map((point) => point.x.value as number);
  const [least, most] = [Math.min(...all), Math.max(...all)];
  const isFar = (point: Point) => (point.x.value as number) - least > 0.65 * (most - least);
  const values = (point: Point) => [point.x.value as number, point.y.value as number];
  const upright = points.flatMap(({ x, y }) =>
    y.low === null || y.high === null ? [] : [[x.value as number, y.low, y.high]],
  );
  const lying = points.flatMap(({ x, y }) =>
    x.low === null || x.high === null ? [] : [[y.value as number, x.low, x.high]],
  );
  return {
    grid: { ...MARGIN, right: 40, top: 30 },
    tooltip: {
      ...tooltip(style),
      trigger: "item",
      formatter: (given) => {
        const point = points[(Array.isArray(given) ? given[0] : given)?.seriesIndex ?? 0];
        return point
          ? lines(point.name, [
              [x, said(point.x)],
              [y, said(point.y)],
            ])
          : "";
      },
    },
    xAxis: valueAxis(style, x, { scale: true, nameGap: 30 }),
    yAxis: valueAxis(style, y, { scale: true, nameGap: 46, nameTruncate: { maxWidth: 260, ellipsis: " …" } }),
    series: [
      ...points.map(
        (point): SeriesOption => ({
          type: "scatter",
          name: point.name,
          data: [values(point)],
          symbol: point.symbol,
          symbolSize: 12,
          itemStyle: { color: point.colour, borderColor: style.card, borderWidth: 1 },
          label: {
            show: true,
            position: isFar(point) ? "left" : "right",
            textBorderColor: style.card,
            textBorderWidth: 2,
            formatter: () => point.name,
            color: style.ink,
            width: style.width < 500 ? 90 : 160,
            overflow: "truncate",
          },
          labelLayout: { dy: -9, hideOverlap: true }, // above the whisker
          z: 6,
        }),
      ),
      whiskers(upright, "y", style),
      whiskers(lying, "x", style),
      {
        type: "line",
        data: front.map(values),
        step: "end",
        symbol: "none",
        silent: true,
        lineStyle: { color: style.soft, type: "dashed", width: 1.5 },
      },
    ],
  };
}

/** A training run over its checkpoints. */
export interface Run {
  name: string;
  colour: string;
  points: { step: number; figure: Figure; told: boolean | null }[];
}

export function curves(runs: Run[], y: string, style: Style): EChartsOption {
  return {
    grid: { ...MARGIN, top: 30 },
    tooltip: {
      ...tooltip(style),
      trigger: "axis",
      formatter: (given) => {
        const first = Array.isArray(given) ? given[0] : given;
        const step = (first?.value as number[] | undefined)?.[0];
        const there = runs.flatMap((run) =>
          run.points
            .filter((point) => point.step === step)
            .map((point): [string, string] => [run.name, said(point.figure)]),
        );
        return lines(`@${step}`, there);
      },
    },
    xAxis: valueAxis(style, "", { min: "dataMin", max: "dataMax" }),
    yAxis: valueAxis(style, y, { scale: true, nameGap: 46, nameTruncate: { maxWidth: 260, ellipsis: " …" } }),
    series: runs.flatMap((run, n): SeriesOption[] => {
      const banded = run.points.filter(({ figure }) => figure.low !== null && figure.high !== null);
      const edge = {
        type: "line" as const,
        stack: `band ${n}`,
        stackStrategy: "all" as const,
        symbol: "none",
        silent: true,
        lineStyle: { opacity: 0 },
      };
      return [
        { ...edge, data: banded.map(({ step, figure }) => [step, figure.low as number]) },
        {
          ...edge,
          data: banded.map(({ step, figure }) => [step, (figure.high as number) - (figure.low as number)]),
          areaStyle: { color: run.colour, opacity: 0.16 },
        },
        {
          type: "line",
          name: run.name,
          data: run.points.map(({ step, figure, told }) => ({
            value: [step, figure.value as number],
            symbol: told ? "diamond" : "circle",
            symbolSize: told ? 14 : 7,
          })),
          showSymbol: true,
          itemStyle: { color: run.colour },
          lineStyle: { color: run.colour, width: 2 },
        },
      ];
    }),
  };
}

/** From 0 to the top of the scale, or further if a value or interval is beyond it. */
function range(rows: { figure: Figure }[], top: number): { min: number; max: number } {
  const all = rows.flatMap(({ figure: { value, low, high } }) => [value, low, high].filter((one) => one !== null));
  return { min: Math.min(0, ...all), max: Math.max(top, ...all) };
}

/**
 * Figures with their intervals, in the order of `rows`; names are on the vertical axis. If `top` is the top of a scale, each
 * figure is a bar from 0. If `top` is 0, each figure is a point.
 */
export function intervals(
  rows: { name: string; figure: Figure; colour?: string }[],
  x: string,
  style: Style,
  top: number,
): EChartsOption {
  const ends = rows.flatMap(({ figure: { low, high } }, n) => (low === null || high === null ? [] : [[n, low, high]]));
  return {
    grid: { ...MARGIN, bottom: 34 },
    tooltip: {
      ...tooltip(style),
      trigger: "axis",
      axisPointer: { type: "shadow" },
      formatter: (given) => {
        const row = rows[(Array.isArray(given) ? given[0] : given)?.dataIndex ?? 0];
        return row ? lines(row.name, [[x, said(row.figure)]]) : "";
      },
    },
    xAxis: valueAxis(style, x, { nameGap: 30, ...(top ? range(rows, top) : { scale: true }) }),
    yAxis: {
      type: "category",
      data: rows.map((row) => row.name),
      inverse: true,
      axisTick: { show: false },
      axisLine: { lineStyle: { color: style.soft } },
      axisLabel: { color: style.ink, width: style.width < 500 ? 96 : 200, overflow: "truncate", interval: 0 },
    },
    series: [
      top
        ? {
            type: "bar",
            data: rows.map(({ figure, colour = style.ink }) => ({
              value: figure.value as number,
              itemStyle: { color: colour },
            })),
            barWidth: 16,
          }
        : {
            type: "scatter",
            data: rows.map((row) => row.figure.value as number),
            symbolSize: 11,
            itemStyle: { color: style.ink },
            z: 6,
          },
      whiskers(ends, "x", style),
    ],
  };
}
