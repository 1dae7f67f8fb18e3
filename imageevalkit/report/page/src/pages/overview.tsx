import type { Index } from "../data";
import { t } from "../words";

export function Overview({ index }: { index: Index }) {
  return (
    <section class="card">
      <h1>{t("overview")}</h1>
      <ul>
        {index.models.map((model) => (
          <li key={model.name}>{model.name}</li>
        ))}
      </ul>
    </section>
  );
}
