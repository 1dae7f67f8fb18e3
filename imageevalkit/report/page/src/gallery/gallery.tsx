import type { Index } from "../data";
import { t } from "../words";

export function Gallery({ benchmark }: { index: Index; benchmark: string }) {
  return (
    <section class="card">
      <h1>
        {t("gallery")}: {benchmark}
      </h1>
    </section>
  );
}
