// Small parts that the gallery, the viewer and the vote share.
import { signal } from "@preact/signals";
import type { ComponentChildren } from "preact";
import { useEffect, useRef, useState } from "preact/hooks";
import { t } from "../words";
import type { Score } from "./table";

export function format({ value, scale }: Pick<Score, "value" | "scale">): string {
  if (scale <= 1) return value.toFixed(3);
  return Number.isInteger(value) ? String(value) : value.toFixed(1);
}

const LONG = 320;

/** Text of any length: a long one is cut until the reader asks for it. */
export function Clamp({ text, kind = "" }: { text: string; kind?: string }) {
  const [whole, setWhole] = useState(false);
  const long = text.length > LONG || text.split("\n").length > 8;
  return (
    <>
      <p class={`g-text ${kind} ${long && !whole ? "g-cut" : ""}`} dir="auto">
        {text}
      </p>
      {long && (
        <button type="button" class="more" aria-expanded={whole} onClick={() => setWhole(!whole)}>
          {t(whole ? "less" : "more")}
        </button>
      )}
    </>
  );
}

const said = signal("");

/** Reports what was done, to the eye and to a screen reader. Each dialog has its own, because a dialog hides everything else. */
export function Said() {
  return (
    <p class="g-said" role="status">
      {said.value}
    </p>
  );
}

export function say(text: string): void {
  said.value = text;
  setTimeout(() => {
    if (said.value === text) said.value = "";
  }, 2500);
}

export async function copy(text: string): Promise<void> {
  try {
    await navigator.clipboard.writeText(text);
    say(t("copied"));
  } catch {
    // not allowed here: the reader can still copy it by hand
    window.prompt(t("copy_by_hand"), text);
  }
}

export function Copy({ text, label }: { text: string; label: string }) {
  return (
    <button type="button" class="g-button" onClick={() => copy(text)}>
      {label}
    </button>
  );
}

interface DialogProps {
  label: string;
  kind: string;
  onClose: () => void;
  onKeyDown?: (event: KeyboardEvent) => void;
  children: ComponentChildren;
}

/** A modal dialog that is open as long as it is drawn; Esc and a click beside it close it. */
export function Dialog({ label, kind, onClose, onKeyDown, children }: DialogProps) {
  const box = useRef<HTMLDialogElement>(null);
  useEffect(() => {
    box.current?.showModal();
    box.current?.focus(); // not its first button, which a key would press
  }, []);
  return (
    <dialog
      ref={box}
      tabIndex={-1}
      class={`g-dialog ${kind}`}
      aria-label={label}
      onClose={onClose}
      onKeyDown={onKeyDown}
      onClick={(event) => {
        if (event.target === box.current) onClose();
      }}
    >
      {children}
    </dialog>
  );
}

/** The text in place of a missing picture. */
export function Gone({ kind, title, remark }: { kind: string; title: string; remark: string }) {
  return (
    <div class={`g-picture g-gone ${kind}`}>
      <p dir="auto">
        <b>{title}</b>
        <span>{remark}</span>
      </p>
    </div>
  );
}

export function Keys({ keys, onClose }: { keys: [string, string][]; onClose: () => void }) {
  return (
    <Dialog label={t("keyboard")} kind="g-help" onClose={onClose}>
      <h2>{t("keyboard")}</h2>
      <dl>
        {keys.map(([key, what]) => (
          <div key={key}>
            <dt>
              {key.split(" ").map((one) => (
                <kbd key={one}>{one}</kbd>
              ))}
            </dt>
            <dd>{what}</dd>
          </div>
        ))}
      </dl>
      <button type="button" class="g-button" onClick={onClose}>
        {t("close")}
      </button>
    </Dialog>
  );
}
