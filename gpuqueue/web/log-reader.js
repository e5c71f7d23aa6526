// Reads the output of a run while somebody looks at it, and keeps it as lines.
import { onReturn, readBytes } from "./api.js";
import { LogText } from "./log-text.js";
import { useEffect, useRef, useState } from "./lib.js";

/** Lines at the beginning, and how often more is asked for. */
export const FIRST_LINES = 2000;
const EVERY_MS = 1000;
/** The service sends at most so much at a time. */
const PART_BYTES = 1024 * 1024;
const PAUSE_MS = 15000;

/** @typedef {{log: LogText, version: number, isWhole: boolean, isFull: boolean, wrong: string, warning: string}} Shown */

/**
 * Follow the output of one run. What it returns is new whenever `version` is.
 * @param {string} path of the job
 * @param {{attempt: number, stream: string, lines: number | null, from: number, isNow: boolean, mayDrop: boolean}} what
 *   `lines`: begin with the last ones, null: at the byte `from`; `isNow`: more may come; `mayDrop`: the oldest lines may
 *   go for new ones, because nobody reads them
 * @returns {Shown}
 */
export function useLog(path, { attempt, stream, lines, from, isNow, mayDrop }) {
  const [shown, setShown] = useState(/** @type {Shown} */ ({ log: new LogText(), version: 0, isWhole: lines === null && !from, isFull: false, wrong: "", warning: "" }));
  const now = useRef({ isNow, mayDrop });
  now.current = { isNow, mayDrop };
  const wake = useRef(() => {});
  useEffect(() => {
    const stop = new AbortController();
    const log = new LogText();
    const decoder = new TextDecoder();
    let timer = 0;
    let offset = -1;
    let version = 0;
    let isBusy = false;
    let isWhole = lines === null && !from;
    let pause = EVERY_MS;
    /** @param {Partial<Shown>} more */
    const draw = (more) => setShown({ log, version: (version += 1), isWhole, isFull: false, wrong: "", warning: "", ...more });
    const step = async () => {
      clearTimeout(timer);
      if (isBusy || stop.signal.aborted) return;
      if (!now.current.mayDrop && log.lines.length >= log.most) {
        draw({ isFull: true });
        timer = window.setTimeout(step, EVERY_MS);
        return;
      }
      isBusy = true;
      const wasNow = now.current.isNow;
      let isMore = false;
      try {
        const begin = offset < 0 && lines !== null ? { lines } : { offset: offset < 0 ? from : offset };
        const part = await readBytes(`${path}/log`, { attempt, stream, ...begin }, stop.signal);
        if (offset < 0 && !from && part.next === part.bytes.length) isWhole = true;
        const isFirst = offset < 0;
        offset = part.next;
        pause = EVERY_MS;
        isMore = part.bytes.length >= PART_BYTES;
        if (part.bytes.length) log.write(decoder.decode(part.bytes, { stream: true }));
        if (part.bytes.length || isFirst || part.warning) draw({ warning: part.warning ?? "" });
      } catch (error) {
        if (stop.signal.aborted) return;
        pause = Math.min(pause * 2, PAUSE_MS);
        draw({ wrong: /** @type {Error} */ (error).message });
      } finally {
        isBusy = false;
      }
      if (!stop.signal.aborted && document.visibilityState === "visible" && (isMore || wasNow || pause > EVERY_MS)) timer = window.setTimeout(step, isMore ? 0 : pause);
    };
    const forget = onReturn(step);
    wake.current = step;
    step();
    return () => {
      stop.abort();
      clearTimeout(timer);
      forget();
    };
  }, [path, attempt, stream, lines, from]);
  useEffect(() => wake.current(), [isNow, mayDrop]); // the last lines come when the run has ended
  return shown;
}
