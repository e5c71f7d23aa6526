// What does not answer. Each part of a view says what it has met, and the page shows each trouble once, at its top. The
// data below it stays as it was.
import { html, useEffect, useLayoutEffect, useRef, useState } from "../lib.js";
import { clock } from "../words.js";

/** @typedef {{words: string, isBad: boolean, at: string | null}} Met */

/** @type {Record<string, string>} */
const WHO = {
  StoreUnreachable: "The store of the queue does not answer. Jobs that run go on; nothing can be submitted or changed.",
  HistoryUnreachable: "The history database does not answer.",
};
export const NO_ANSWER = "The service does not answer. This page tries again by itself.";
const NO_HISTORY = "The history database does not answer: past jobs cannot be shown. The queue goes on.";

/** What parts of the page have met, by part. @type {Map<object, Met>} */
const MET = new Map();
const CHANGED = new EventTarget();

/** @param {object} part @param {Met | null} met */
function report(part, met) {
  if (met) MET.set(part, met);
  else MET.delete(part);
  CHANGED.dispatchEvent(new Event("change"));
}

/** @param {import("../api.js").ApiError | null | undefined} error @param {boolean} isHistoryAway @param {string | null} at @returns {Met | null} */
function metIn(error, isHistoryAway, at) {
  if (error) return { words: error.status === 0 ? NO_ANSWER : (WHO[error.kind] ?? error.message), isBad: true, at };
  return isHistoryAway ? { words: NO_HISTORY, isBad: false, at: null } : null;
}

/**
 * @param {object} props
 * @param {import("../api.js").ApiError | null} [props.error]
 * @param {boolean} [props.isHistoryAway]
 * @param {string | null} [props.at] the time of the data that is shown
 */
export function Trouble({ error, isHistoryAway = false, at = null }) {
  const part = useRef({});
  const met = metIn(error, isHistoryAway, at);
  useLayoutEffect(() => report(part.current, met), [met?.words, met?.isBad, met?.at]);
  useLayoutEffect(() => () => report(part.current, null), []);
  return null;
}

/** All that parts of the page have met, each once. */
export function Troubles() {
  const [, draw] = useState(0);
  useEffect(() => {
    const changed = () => draw((was) => was + 1);
    CHANGED.addEventListener("change", changed);
    changed();
    return () => CHANGED.removeEventListener("change", changed);
  }, []);
  /** @type {Map<string, Met>} */
  const found = new Map();
  for (const each of MET.values()) {
    const known = found.get(each.words);
    if (!known || (each.at && (!known.at || each.at < known.at))) found.set(each.words, each);
  }
  return [...found.values()].map(({ words, isBad, at }) => html`
    <p key=${words} class=${isBad ? "banner bad" : "banner"} role=${isBad ? "alert" : "status"}>${words} ${at ? `What you see is from ${clock(at)}.` : null}</p>`);
}
