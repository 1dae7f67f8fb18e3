// The relations between scores of the same images: a map of all pairs of metrics, the scatter, the numbers.
import type { Index, RelationMap } from "../data";
import { picture } from "../data";
import { Name, Scroll, Text } from "../parts";
import { type Column, Table } from "../table";
import { t, word } from "../words";

type Pair = RelationMap["pairs"][number];

export function Relations({ index, maps }: { index: Index; maps: RelationMap[] }) {
  return (
    <>
      <ul class="legend">
        {Object.entries(index.kinds).map(([name, kind]) => (
          <li key={name}>
            <i class={`field kind-${name}`} style={{ "--kind": kind.colour }}>
              {kind.mark}
            </i>
            {word(kind.label)}
          </li>
        ))}
        <li>
          <i class="field absent" />
          {t("no_pair")}
        </li>
      </ul>
      <div class="maps">
        {maps.map((map) => (
          <MapOf key={map.cell} index={index} map={map} />
        ))}
      </div>
      <p class="note">{t("relations_note")}</p>
    </>
  );
}

function MapOf({ index, map }: { index: Index; map: RelationMap }) {
  const model = index.cells[map.cell]?.model ?? "";
  const pairOf = (row: string, column: string) =>
    map.pairs.find(({ first, second }) => (first === row && second === column) || (first === column && second === row));
  return (
    <figure class="map">
      <figcaption>
        <Name name={model} />
      </figcaption>
      <Scroll label={t("relations_of", { model })}>
        <table class="dtm">
          <thead>
            <tr>
              <td />
              {map.metrics.map((name) => (
                <th key={name} scope="col">
                  <bdi>{name}</bdi>
                </th>
              ))}
            </tr>
          </thead>
          <tbody>
            {map.metrics.map((row, r) => (
              <tr key={row}>
                <th scope="row">
                  <bdi>{row}</bdi>
                </th>
                {map.metrics.map((column, c) => (
                  <Field
                    key={column}
                    index={index}
                    map={map}
                    row={row}
                    below={c < r}
                    column={column}
                    pair={pairOf(row, column)}
                  />
                ))}
              </tr>
            ))}
          </tbody>
        </table>
      </Scroll>
      <p class="facts">
        <span>{map.correlation}</span>
        <span>
          {t("files")}{" "}
          {map.files.map(({ name, href }, n) => (
            <>
              {n > 0 && ", "}
              <a href={href}>{name}</a>
            </>
          ))}
        </span>
      </p>
      {map.scatter && (
        <details>
          <summary>{t("scatter_of_pairs")}</summary>
          <img
            class="scatter"
            src={picture(map.scatter)}
            loading="lazy"
            decoding="async"
            alt={t("scatter_alt", { model })}
          />
        </details>
      )}
      <details>
        <summary>
          {t("pairs_in_numbers", { n: map.pairs.length })}{" "}
          <span class="soft">
            {Object.entries(map.thresholds)
              .map(([name, value]) => `${name.replaceAll("_", " ")} ${+value.toPrecision(4)}`)
              .join(", ")}
          </span>
        </summary>
        <Pairs map={map} model={model} />
      </details>
    </figure>
  );
}

interface FieldProps {
  index: Index;
  map: RelationMap;
  row: string;
  column: string;
  below: boolean;
  pair: Pair | undefined;
}

function Field({ index, map, row, column, below, pair }: FieldProps) {
  if (row === column) return <td class="own">{map.means[row]?.toFixed(2)}</td>;
  if (!pair) return <td class="absent" />;
  const [first, second] = pair.first === row ? pair.means : [pair.means[1], pair.means[0]];
  if (below) return <td class="both">{`${first.toFixed(2)} ${second.toFixed(2)}`}</td>;
  const name = pair.first === row ? pair.kind : reversed(pair.kind);
  const kind = index.kinds[name];
  const sure = pair.certainty;
  const style = { "--kind": kind?.colour, "--sure": `${(10 + 38 * (sure ?? 0)).toFixed(0)}%` };
  const title = `${row} × ${column}: ${pair.label}, ${certainty(pair)}, n = ${pair.n}${pair.onLine ? `; ${t("on_line")}` : ""}`;
  return (
    <td class={`field kind-${name}`} style={style} title={title}>
      <b>{kind?.mark}</b>
      {sure === null ? `n ${pair.n}` : `${(100 * sure).toFixed(0)}%`}
    </td>
  );
}

function reversed(kind: string): string {
  return kind === "tilt" ? "tilt-back" : kind === "tilt-back" ? "tilt" : kind;
}

function certainty(pair: Pair): string {
  return pair.certainty === null ? t("too_few_prompts") : t("in_resamples", { share: percent(pair.certainty) });
}

function percent(share: number): string {
  return `${(100 * share).toFixed(1)} %`;
}

function Pairs({ map, model }: { map: RelationMap; model: string }) {
  const columns: Column<Pair>[] = [
    { key: "pair", head: t("pair"), cell: (pair) => <Text text={`${pair.first} × ${pair.second}`} /> },
    {
      key: "relation",
      head: t("relation"),
      cell: (pair) => (
        <>
          <bdi>{pair.label}</bdi> {pair.onLine && <span class="soft">({t("on_line")})</span>}
        </>
      ),
    },
    {
      key: "sure",
      head: t("resamples"),
      cell: (pair) => (pair.certainty === null ? t("too_few_prompts") : percent(pair.certainty)),
    },
    {
      key: "next",
      head: t("else_most"),
      cell: (pair) => pair.next && <bdi>{`${pair.next[0]} ${percent(pair.next[1])}`}</bdi>,
    },
    { key: "n", head: t("items"), cell: (pair) => pair.n },
    { key: "means", head: t("means"), cell: (pair) => pair.means.map((mean) => mean.toFixed(3)).join(", ") },
    { key: "high", head: t("both_high"), cell: (pair) => percent(pair.synergy) },
    { key: "low", head: t("both_low"), cell: (pair) => percent(pair.bottleneck) },
    { key: "sides", head: t("above_below"), cell: (pair) => `${pair.above} : ${pair.below}` },
    { key: "r", head: map.correlation, cell: (pair) => pair.correlation?.toFixed(3) ?? "–" },
  ];
  return (
    <Table
      label={t("pairs_of", { model })}
      rows={map.pairs}
      columns={columns}
      keyOf={(pair) => `${pair.first}\n${pair.second}`}
      class="pairs"
    />
  );
}
