// The charts of the page and their captions.
import { useMemo } from "preact/hooks";
import type { Figure } from "../data";
import { t } from "../words";
import { Chart } from "./chart";
import {
  bars,
  barsHeight,
  curves,
  intervals,
  type Point,
  type Row,
  type Run,
  radar,
  scaleOf,
  scatter,
} from "./options";

/** Whether a radar is readable with so many metrics. */
export function isRadar(metrics: number): boolean {
  return metrics >= 3 && metrics <= 12;
}

export function Bars({ metrics, rows, label }: { metrics: string[]; rows: Row[]; label: string }) {
  const option = useMemo(() => (style: Parameters<typeof bars>[2]) => bars(metrics, rows, style), [metrics, rows]);
  return (
    <figure>
      <Chart option={option} height={barsHeight(metrics.length, rows.length)} label={`${label}. ${t("bars_note")}`} />
      {!scaleOf(rows) && <figcaption>{t("share_note")}</figcaption>}
    </figure>
  );
}

export function Radar({ metrics, rows, label }: { metrics: string[]; rows: Row[]; label: string }) {
  const option = useMemo(() => (style: Parameters<typeof radar>[2]) => radar(metrics, rows, style), [metrics, rows]);
  return (
    <figure>
      <Chart option={option} height={380} label={`${label}. ${t("radar_note")}`} />
      <figcaption>{t("radar_note")}</figcaption>
    </figure>
  );
}

interface ScatterProps {
  points: Point[];
  x: string;
  y: string;
  front?: Point[];
}

export function Scatter({ points, x, y, front }: ScatterProps) {
  const option = useMemo(
    () => (style: Parameters<typeof scatter>[3]) => scatter(points, x, y, style, front),
    [points, x, y, front],
  );
  return (
    <figure>
      <Chart option={option} height={420} label={t("scatter_note", { x, y, n: points.length })} />
    </figure>
  );
}

export function Curves({ runs, y }: { runs: Run[]; y: string }) {
  const option = useMemo(() => (style: Parameters<typeof curves>[2]) => curves(runs, y, style), [runs, y]);
  return (
    <figure>
      <Chart option={option} height={400} label={t("curves_label", { y, n: runs.length })} />
    </figure>
  );
}

interface IntervalsProps {
  rows: { name: string; figure: Figure; colour?: string }[];
  x: string;
  label: string;
  /** The top of the scale, if bars start at 0; 0: there is no scale. */
  top?: number;
}

export function Intervals({ rows, x, label, top = 0 }: IntervalsProps) {
  const option = useMemo(
    () => (style: Parameters<typeof intervals>[2]) => intervals(rows, x, style, top),
    [rows, x, top],
  );
  return (
    <figure>
      <Chart option={option} height={70 + 26 * rows.length} label={label} />
    </figure>
  );
}
