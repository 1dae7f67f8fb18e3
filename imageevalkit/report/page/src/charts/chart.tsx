// An ECharts chart: drawn when it becomes visible, and again when its theme, words or width change.
import { signal } from "@preact/signals";
import type { EChartsOption } from "echarts";
import { BarChart, CustomChart, LineChart, RadarChart, ScatterChart } from "echarts/charts";
import { GridComponent, RadarComponent, TooltipComponent } from "echarts/components";
import { init, use } from "echarts/core";
import { LabelLayout } from "echarts/features";
import { SVGRenderer } from "echarts/renderers";
import { useEffect, useRef } from "preact/hooks";
import { theme } from "../words";

use([
  BarChart,
  CustomChart,
  LineChart,
  RadarChart,
  ScatterChart,
  GridComponent,
  RadarComponent,
  TooltipComponent,
  LabelLayout,
  SVGRenderer,
]);

/** The properties of the page that a chart uses. */
export interface Style {
  ink: string;
  soft: string;
  line: string;
  card: string;
  /** The width of the chart in pixels. */
  width: number;
}

const darkness = matchMedia("(prefers-color-scheme: dark)");
const dark = signal(darkness.matches);
darkness.addEventListener("change", () => {
  dark.value = darkness.matches;
});

/** `label` names the content of the chart; the numbers are in a table beside it. */
export function Chart({
  option,
  height,
  label,
}: {
  option: (style: Style) => EChartsOption;
  height: number;
  label: string;
}) {
  const box = useRef<HTMLDivElement>(null);
  const painted = `${theme.value} ${dark.value}`;
  // the theme sets the colours of the page
  useEffect(() => {
    const element = box.current;
    if (!element) return;
    let chart: ReturnType<typeof init> | undefined;
    const draw = () => {
      const { clientWidth: width } = element;
      if (!width) return;
      chart ??= init(element, null, { renderer: "svg" });
      chart.resize();
      const colours = getComputedStyle(element);
      chart.setOption(
        {
          animation: false,
          textStyle: { fontFamily: colours.fontFamily },
          ...option({
            ink: colours.color,
            soft: colours.caretColor,
            line: colours.borderTopColor,
            card: colours.backgroundColor,
            width,
          }),
        },
        { notMerge: true },
      );
    };
    const sized = new ResizeObserver(draw);
    const seen = new IntersectionObserver(
      (entries) => {
        if (!entries.some((entry) => entry.isIntersecting)) return;
        seen.disconnect();
        sized.observe(element); // this draws the chart
      },
      { rootMargin: "300px" },
    );
    seen.observe(element);
    return () => {
      seen.disconnect();
      sized.disconnect();
      chart?.dispose();
    };
  }, [option, painted]);
  return <div ref={box} class="chart" role="img" aria-label={label} style={{ height: `${height}px` }} />;
}
