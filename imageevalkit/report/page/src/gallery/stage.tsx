// Pictures to inspect: one, side by side, in turns, or with a slider between two; all share one zoom.
import { useEffect, useRef, useState } from "preact/hooks";
import { picture } from "../data";
import { t } from "../words";
import { Gone } from "./common";
import type { Mode } from "./view";

export interface Frame {
  key: string;
  label: string;
  alt: string;
  /** The full image ("": not available), and its preview. */
  file: string;
  preview: string;
  /** The text if neither can be shown. */
  gone: { kind: string; title: string; remark: string };
}

export interface Zoom {
  scale: number;
  /** Shares of the frame's width and height. */
  x: number;
  y: number;
}

export const WHOLE: Zoom = { scale: 1, x: 0, y: 0 };
const MOST = 32;
export const STEP = 1.4;

/** `zoom` by `factor` around a point of the frame. The point is in shares of the frame from its middle. */
export function zoomed(zoom: Zoom, factor: number, at: { x: number; y: number } = { x: 0, y: 0 }): Zoom {
  const scale = Math.min(MOST, Math.max(1, zoom.scale * factor));
  const by = scale / zoom.scale;
  return bounded({ scale, x: at.x - (at.x - zoom.x) * by, y: at.y - (at.y - zoom.y) * by });
}

export function moved(zoom: Zoom, x: number, y: number): Zoom {
  return bounded({ ...zoom, x: zoom.x + x, y: zoom.y + y });
}

function bounded({ scale, x, y }: Zoom): Zoom {
  const most = (scale - 1) / 2; // no further than the frame's edge
  const within = (n: number) => Math.min(most, Math.max(-most, n)) || 0;
  return { scale, x: within(x), y: within(y) };
}

export function zoomText({ scale, x, y }: Zoom): string {
  return scale === 1 ? "" : [scale, x, y].map((n) => Number(n.toFixed(3))).join(",");
}

export function zoomOf(text: string): Zoom {
  const [scale = 1, x = 0, y = 0] = text.split(",").map(Number);
  return [scale, x, y].every(Number.isFinite) && scale > 1 ? bounded({ scale: Math.min(scale, MOST), x, y }) : WHOLE;
}

interface Best {
  image: HTMLImageElement | null;
  /** Whether the full image is shown, not its preview. */
  whole: boolean;
  /** Whether the full image was requested and is missing. */
  missing: boolean;
}

/** The preview, until the full image has loaded. */
function useBest(frame: Frame): Best {
  const [best, setBest] = useState<Best>({ image: null, whole: false, missing: !frame.file });
  useEffect(() => {
    let wanted = true;
    const get = (src: string, whole: boolean) => {
      if (!src) return;
      const image = new Image();
      image.onload = () => wanted && setBest((now) => (now.whole ? now : { ...now, image, whole }));
      image.onerror = () => wanted && whole && setBest((now) => ({ ...now, missing: true }));
      image.src = src;
    };
    setBest({ image: null, whole: false, missing: !frame.file });
    get(frame.preview && picture(frame.preview), false);
    get(frame.file, true);
    return () => {
      wanted = false;
    };
  }, [frame.file, frame.preview]);
  return best;
}

/** Drawn on a canvas, so that the page has no address: it may reveal the model to a blind voter. */
function Drawing({ image, label }: { image: HTMLImageElement; label: string }) {
  const canvas = useRef<HTMLCanvasElement>(null);
  useEffect(() => {
    canvas.current?.getContext("2d")?.drawImage(image, 0, 0);
  }, [image]);
  return <canvas ref={canvas} width={image.naturalWidth} height={image.naturalHeight} role="img" aria-label={label} />;
}

interface PictureProps {
  frame: Frame;
  zoom: Zoom;
  blind: boolean;
  onBest?: (best: Best) => void;
}

function Picture({ frame, zoom, blind, onBest }: PictureProps) {
  const best = useBest(frame);
  useEffect(() => onBest?.(best), [best.image, best.whole, best.missing]);
  if (!best.image) {
    const waiting = frame.preview || (frame.file && !best.missing);
    return waiting ? <p class="g-wait">{t("loading")}</p> : <Gone {...frame.gone} />;
  }
  const style = {
    transform: `translate(${zoom.x * 100}%, ${zoom.y * 100}%) scale(${zoom.scale})`,
    // the reader looks for single pixels
    imageRendering: zoom.scale >= 6 && best.whole ? ("pixelated" as const) : ("auto" as const),
  };
  return (
    <div class={best.whole ? "g-zoom" : "g-zoom g-small"} style={style}>
      {blind ? (
        <Drawing image={best.image} label={frame.alt} />
      ) : (
        <img src={best.image.src} alt={frame.alt} draggable={false} />
      )}
    </div>
  );
}

function Note({ frame, best }: { frame: Frame; best: Best | undefined }) {
  if (!best?.image) return null;
  if (!best.whole) return best.missing ? <p class="g-note">{t(frame.file ? "is_preview" : "only_preview")}</p> : null;
  return (
    <p class="g-note">
      <a href={frame.file} target="_blank" rel="noopener">
        {t("open_original")}
      </a>{" "}
      <span>
        {best.image.naturalWidth} × {best.image.naturalHeight}
      </span>
    </p>
  );
}

interface StageProps {
  frames: Frame[];
  mode: Mode;
  /** The number of the picture that is shown, in turns. */
  turn: number;
  zoom: Zoom;
  onZoom: (to: (zoom: Zoom) => Zoom) => void;
  blind?: boolean;
}

export function Stage({ frames, mode, turn, zoom, onZoom, blind = false }: StageProps) {
  const [split, setSplit] = useState(0.5);
  const [best, setBest] = useState<Record<string, Best | undefined>>({});
  const together = frames.length > 1 && mode !== "side";
  const hand = useHand(zoom, onZoom, mode === "slider" && together ? setSplit : undefined);
  const seen = mode === "flicker" ? turn % frames.length : 0;
  const inside = (frame: Frame) => (
    <Picture
      key={frame.key}
      frame={frame}
      zoom={zoom}
      blind={blind}
      onBest={(found) =>
        // full images are large: earlier ones are released
        setBest((now) => Object.fromEntries(frames.map(({ key }) => [key, key === frame.key ? found : now[key]])))
      }
    />
  );
  if (!together) {
    return (
      <div class="g-stage g-side" style={{ "--frames": frames.length }}>
        {frames.map((frame) => (
          <figure key={frame.key}>
            {frame.label && <figcaption dir="auto">{frame.label}</figcaption>}
            <div class="g-frame" {...hand}>
              {inside(frame)}
            </div>
            {!blind && <Note frame={frame} best={best[frame.key]} />}
          </figure>
        ))}
      </div>
    );
  }
  return (
    <div class={`g-stage g-${mode}`}>
      <figure>
        <figcaption dir="auto">
          {mode === "flicker" ? (
            <span aria-live="polite">
              {frames[seen]?.label} ({seen + 1}/{frames.length})
            </span>
          ) : (
            frames.map((frame) => <span key={frame.key}>{frame.label}</span>)
          )}
        </figcaption>
        <div class="g-frame" {...hand}>
          {frames.map((frame, n) => (
            <div
              key={frame.key}
              class="g-layer"
              data-shown={mode === "slider" || n === seen}
              style={mode === "slider" && n ? { clipPath: `inset(0 0 0 ${split * 100}%)` } : {}}
            >
              {inside(frame)}
            </div>
          ))}
          {mode === "slider" && <div class="g-split" style={{ left: `${split * 100}%` }} />}
        </div>
        {mode === "slider" && (
          <input
            type="range"
            min="0"
            max="100"
            step="any"
            aria-label={t("split")}
            value={split * 100}
            onInput={(event) => setSplit(event.currentTarget.valueAsNumber / 100)}
          />
        )}
        {!blind && (
          <div class="g-notes">
            {frames.map((frame) => (
              <Note key={frame.key} frame={frame} best={best[frame.key]} />
            ))}
          </div>
        )}
      </figure>
    </div>
  );
}

/** Wheel, fingers and mouse on a frame: zoom, pan, and move the slider while nothing is zoomed. */
function useHand(zoom: Zoom, onZoom: StageProps["onZoom"], onSplit?: (share: number) => void) {
  const fingers = useRef(new Map<number, { x: number; y: number }>());
  const place = (event: { currentTarget: HTMLElement; clientX: number; clientY: number }) => {
    const box = event.currentTarget.getBoundingClientRect();
    return { x: (event.clientX - box.left) / box.width - 0.5, y: (event.clientY - box.top) / box.height - 0.5 };
  };
  return {
    style: { touchAction: zoom.scale > 1 ? "none" : "pan-y" },
    "data-zoomed": zoom.scale > 1,
    onWheel: (event: WheelEvent & { currentTarget: HTMLElement }) => {
      event.preventDefault();
      const at = place(event);
      onZoom((now) => zoomed(now, Math.exp(-event.deltaY / (event.ctrlKey ? 100 : 400)), at));
    },
    onDblClick: (event: MouseEvent & { currentTarget: HTMLElement }) => {
      const at = place(event);
      onZoom((now) => (now.scale > 1 ? WHOLE : zoomed(now, 3, at)));
    },
    onPointerDown: (event: PointerEvent & { currentTarget: HTMLElement }) => {
      if (event.button) return;
      event.currentTarget.setPointerCapture(event.pointerId);
      fingers.current.set(event.pointerId, place(event));
      if (onSplit && zoom.scale === 1 && fingers.current.size === 1) onSplit(place(event).x + 0.5);
    },
    onPointerMove: (event: PointerEvent & { currentTarget: HTMLElement }) => {
      const before = fingers.current.get(event.pointerId);
      if (!before) return;
      const now = place(event);
      const other = [...fingers.current].find(([id]) => id !== event.pointerId)?.[1];
      fingers.current.set(event.pointerId, now);
      if (other) {
        const apart = (p: { x: number; y: number }) => Math.hypot(p.x - other.x, p.y - other.y) || 0.001;
        const middle = { x: (now.x + other.x) / 2, y: (now.y + other.y) / 2 };
        onZoom((z) =>
          moved(zoomed(z, apart(now) / apart(before), middle), (now.x - before.x) / 2, (now.y - before.y) / 2),
        );
      } else if (onSplit && zoom.scale === 1) {
        onSplit(Math.min(1, Math.max(0, now.x + 0.5)));
      } else {
        onZoom((z) => moved(z, now.x - before.x, now.y - before.y));
      }
    },
    onPointerUp: (event: PointerEvent) => fingers.current.delete(event.pointerId),
    onPointerCancel: (event: PointerEvent) => fingers.current.delete(event.pointerId),
  };
}
