// A small chart of values over time, as SVG. It needs no library: a few hundred points, drawn when they change.
import { html, useEffect, useRef, useState } from "../lib.js";

/** @typedef {{label: string, points: [number, number | null][], isStep?: boolean}} Series points in seconds; null: a gap */
/** @typedef {{label: string, value: number}} Mark a level to compare with */

const LEFT = 46;
const RIGHT = 10;
const TOP = 10;
const BOTTOM = 22;
const SPANS_S = [1, 2, 5, 10, 30, 60, 120, 300, 600, 1800, 3600, 7200, 14400, 43200, 86400, 172800, 604800];
/** Fewest pixels between two times on the axis. */
const APART = 80;

/** The path of a line, with gaps where a value is unknown. @param {[number, number | null][]} points @param {boolean} isStep @param {(x: number) => number} x @param {(y: number) => number} y */
function pathOf(points, isStep, x, y) {
  let path = "";
  /** @type {number | null} */
  let before = null;
  for (const [at, value] of points) {
    if (value === null) {
      if (isStep && before !== null) path += `H${x(at).toFixed(1)}`;
      before = null;
      continue;
    }
    const place = `${x(at).toFixed(1)} ${y(value).toFixed(1)}`;
    if (before === null) path += `M${place}`;
    else path += isStep ? `H${x(at).toFixed(1)}V${y(value).toFixed(1)}` : `L${place}`;
    before = value;
  }
  return path;
}

/** The value of a line at a time: that of the last point before. @param {Series} series @param {number} at */
export function valueAt(series, at) {
  let found = /** @type {number | null} */ (null);
  for (const [when, value] of series.points) {
    if (when > at) break;
    found = value;
  }
  return found;
}

/** The width of an element, followed. */
function useWidth() {
  const box = useRef(/** @type {HTMLDivElement | null} */ (null));
  const [width, setWidth] = useState(600);
  useEffect(() => {
    const measure = () => box.current && setWidth(Math.max(200, Math.floor(box.current.clientWidth)));
    const watcher = new ResizeObserver(measure);
    if (box.current) watcher.observe(box.current);
    measure();
    return () => watcher.disconnect();
  }, []);
  return { box, width };
}

/**
 * @param {object} props
 * @param {string} props.title what a screen reader says
 * @param {Series[]} props.series
 * @param {Mark[]} props.marks
 * @param {number} [props.least] the lowest value of the axis, 0 by default
 * @param {number} props.most the highest value of the axis
 * @param {number} props.from in seconds
 * @param {number} props.to in seconds
 * @param {number} props.height in pixels
 * @param {(value: number) => string} props.words
 * @param {(seconds: number) => string} props.timeWords
 */
export function LineChart({ title, series, marks, least = 0, most, from, to, height, words, timeWords }) {
  const { box, width } = useWidth();
  const [pointed, setPointed] = useState(/** @type {number | null} */ (null));
  const span = Math.max(1, to - from);
  const inner = width - LEFT - RIGHT;
  /** @param {number} at */
  const x = (at) => LEFT + ((at - from) / span) * inner;
  /** @param {number} value */
  const y = (value) => TOP + (1 - (value - least) / (most - least)) * (height - TOP - BOTTOM);
  const step = SPANS_S.find((each) => (each / span) * inner >= APART) ?? span;
  const times = [];
  for (let at = Math.ceil(from / step) * step; at <= to && times.length < 40; at += step) {
    if (!times.length || timeWords(at) !== timeWords(times[times.length - 1])) times.push(at); // late, a minute has one name
  }
  /** @param {PointerEvent & {currentTarget: SVGElement}} event */
  const moved = (event) => {
    const at = from + ((event.clientX - event.currentTarget.getBoundingClientRect().left - LEFT) / inner) * span;
    setPointed(at >= from && at <= to ? at : null);
  };
  const found = pointed === null ? [] : series.map((each) => ({ label: each.label, value: valueAt(each, pointed) }));
  return html`
    <div class="chart" ref=${box}>
      <svg width=${width} height=${height} role="img" aria-label=${title} onPointerMove=${moved} onPointerLeave=${() => setPointed(null)}>
        ${[least, (least + most) / 2, most].map((each) => html`
          <line class="grid" x1=${LEFT} x2=${width - RIGHT} y1=${y(each)} y2=${y(each)}></line>
          <text class="tick" x=${LEFT - 6} y=${y(each) + 4} text-anchor="end">${words(each)}</text>`)}
        ${times.map((each) => html`<text class="tick" x=${x(each)} y=${height - 6} text-anchor=${each === from ? "start" : x(each) > width - RIGHT - 24 ? "end" : "middle"}>${timeWords(each)}</text>`)}
        ${marks.map((each) => html`<line class="mark-line" x1=${LEFT} x2=${width - RIGHT} y1=${y(each.value)} y2=${y(each.value)}></line>
          <text class="mark-text" x=${width - RIGHT} y=${y(each.value) - 4} text-anchor="end">${each.label}</text>`)}
        ${series.map((each, place) => html`<path class=${`series s${place % 6}`} d=${pathOf(each.points, Boolean(each.isStep), x, y)}></path>`)}
        ${pointed === null ? null : html`<line class="pointer" x1=${x(pointed)} x2=${x(pointed)} y1=${TOP} y2=${height - BOTTOM}></line>`}
      </svg>
      <p class="legend">
        ${series.map((each, place) => html`<span><i class=${`stroke s${place % 6}`}></i>${each.label}${pointed === null ? "" : `: ${found[place].value === null ? "not known" : words(/** @type {number} */ (found[place].value))}`}</span>`)}
        ${pointed === null ? null : html`<span>at ${timeWords(Math.round(pointed))}</span>`}
      </p>
    </div>
  `;
}
