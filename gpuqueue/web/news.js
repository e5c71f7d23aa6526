// How old what is shown is: since when none of the questions of the page has an answer that is due.
import { useEffect, useState } from "./lib.js";

/** From so much delay on the age is shown, in milliseconds, and how often it is looked at. */
const LATE_MS = 3000;
const CHECK_MS = 1000;

/** What is asked again and again: when its last answer came, and how often one is due. @typedef {{at: number, everyMs: number}} Source */

/** @type {Set<Source>} */
const SOURCES = new Set();

/** Begin to ask something again and again. Return its entry, to set `at` in, and how to end that. @param {number} everyMs @returns {[Source, () => void]} */
export function newsOf(everyMs) {
  const source = { at: Date.now(), everyMs };
  SOURCES.add(source);
  return [source, () => SOURCES.delete(source)];
}

/** The time of the last answer of what is late, the oldest first; null if all have come in time. */
function lateSince() {
  const late = [...SOURCES].filter((each) => Date.now() - each.at > each.everyMs + LATE_MS).map((each) => each.at);
  return late.length ? Math.min(...late) : null;
}

/** The age of what is shown in seconds; null while the page has news. */
export function useAge() {
  const [age, setAge] = useState(/** @type {number | null} */ (null));
  useEffect(() => {
    const check = () => {
      if (document.visibilityState !== "visible") return;
      const since = lateSince();
      setAge(since === null ? null : Math.round((Date.now() - since) / 1000));
    };
    const timer = setInterval(check, CHECK_MS);
    return () => clearInterval(timer);
  }, []);
  return age;
}
