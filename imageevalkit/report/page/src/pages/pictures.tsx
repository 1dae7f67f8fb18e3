import { useEffect, useState } from "preact/hooks";
import { type Cell, type Index, type Items, part, picture } from "../data";
import { format } from "../gallery/common";
import { Short } from "../parts";
import { href } from "../route";
import { t } from "../words";

const MOST = 6;
/** The parts of a larger benchmark take too long to load for six pictures. */
const MOST_PROMPTS = 5000;

interface Shot {
  model: string;
  item: string;
  caption: string;
  title: string;
  preview: string;
}

function Shots({ shots, benchmark }: { shots: Shot[]; benchmark: string }) {
  return (
    <ul class="shots">
      {shots.map(({ model, item, caption, title, preview }) => (
        <li key={`${model}\n${item}`}>
          <a href={href(["gallery", benchmark], { item, model })} title={title}>
            <img src={picture(preview)} alt="" loading="lazy" />
            <Short name={caption} />
          </a>
        </li>
      ))}
    </ul>
  );
}

/** Six pictures of one benchmark: the same prompts by up to six models. */
export function Pictures({ index }: { index: Index }) {
  const [shots, setShots] = useState<Shot[]>([]);
  const number = chosen(index);
  const benchmark = index.benchmarks[number];
  useEffect(() => {
    let isGone = false;
    if (benchmark)
      shotsOf(index, number).then(
        (found) => isGone || setShots(found),
        () => undefined, // the gallery reports a file that cannot be loaded
      );
    return () => {
      isGone = true;
    };
  }, [index, number]);
  if (!benchmark || !shots.length) return null;
  return (
    <section class="card">
      <h2>{t("sample_images")}</h2>
      <Shots shots={shots} benchmark={benchmark.name} />
      <p class="facts">
        <a href={href(["gallery", benchmark.name])}>{t("to_gallery", { n: benchmark.prompts })}</a>
      </p>
    </section>
  );
}

/** The number of the benchmark with pictures of most models; among equals, of the one with the fewest prompts. */
function chosen(index: Index): number {
  let best = -1;
  index.benchmarks.forEach((one, n) => {
    const before = index.benchmarks[best];
    const models = (of: typeof one) => Math.min(MOST, of.cells.length);
    if (!one.prompts || one.prompts > MOST_PROMPTS) return;
    if (!before || models(one) > models(before) || (models(one) === models(before) && one.prompts < before.prompts))
      best = n;
  });
  return best;
}

async function shotsOf(index: Index, number: number): Promise<Shot[]> {
  const cells = (index.benchmarks[number]?.cells ?? []).slice(0, MOST).flatMap((n) => index.cells[n] ?? []);
  const [{ rows }, ...all] = await Promise.all([
    part(`prompts/${number}`),
    ...cells.map(({ folder }) => part(`cells/${folder}/items`)),
  ]);
  const places = all.map((one: Items) => new Map(one.items.map((item) => [item.id, item])));
  const shots: Shot[] = [];
  for (const { prompt, items } of rows) {
    const found = cells.flatMap(({ model }, n): Shot[] => {
      const item = items.map((id) => places[n]?.get(id)).find((one) => one?.preview);
      return item?.preview ? [{ model, item: item.id, caption: model, title: prompt, preview: item.preview }] : [];
    });
    if (shots.length + found.length > MOST) break;
    shots.push(...found);
  }
  return shots;
}

/** The images of one result with the lowest and the highest value of a metric. */
export function Extremes({ cell, metric }: { cell: Cell; metric: string }) {
  const [items, setItems] = useState<Items>();
  useEffect(() => {
    if (cell.folder) part(`cells/${cell.folder}/items`).then(setItems, () => undefined);
  }, [cell.folder]);
  const names = items?.metrics ?? [];
  const number = Math.max(0, names.indexOf(metric)); // a headline may be computed from other values
  const sorted = (items?.items ?? [])
    .flatMap(({ id, values, preview }) => {
      const value = values?.[number];
      return preview && value != null ? [{ id, preview, value }] : [];
    })
    .sort((a, b) => a.value - b.value);
  if (sorted.length < 2) return null;
  const count = Math.min(MOST, Math.floor(sorted.length / 2));
  const shots = (from: typeof sorted) =>
    from.map(({ id, preview, value }): Shot => {
      const caption = format({ value, scale: items?.scales[number] ?? 1 });
      return { model: cell.model, item: id, caption, title: id, preview };
    });
  return (
    <section class="card">
      <h2>{t("lowest")}</h2>
      <Shots shots={shots(sorted.slice(0, count))} benchmark={cell.benchmark} />
      <h2>{t("highest")}</h2>
      <Shots shots={shots(sorted.slice(-count).reverse())} benchmark={cell.benchmark} />
      <p class="note">{t("by_metric", { metric: names[number] ?? "" })}</p>
    </section>
  );
}
