// Reading once: for what does not change each second.
import { noted, onReturn, send } from "./api.js";
import { useCallback, useEffect, useState } from "./lib.js";

/** Pauses between two tries, in milliseconds. */
const FIRST_PAUSE_MS = 1000;
const LONGEST_PAUSE_MS = 15000;

/**
 * @template T
 * @typedef {{value: T | null, of: string | null, error: import("./api.js").ApiError | null, again: () => void}} Once
 */

/**
 * Read an address when it changes, and when `again` is called; while the service does not answer, again and again. Until
 * the new value is there, the last one stays. `of` is the address that `value` came from.
 * @template T
 * @param {string | null} url
 * @returns {Once<T>}
 */
export function useRead(url) {
  const [state, setState] = useState(/** @type {Omit<Once<any>, "again">} */ ({ value: null, of: null, error: null }));
  const [turn, setTurn] = useState(0);
  useEffect(() => {
    if (url === null) return undefined;
    const stop = new AbortController();
    setState((was) => (was.error === null ? was : { ...was, error: null }));
    let timer = 0;
    let isBusy = false;
    let pause = FIRST_PAUSE_MS;
    const run = async () => {
      clearTimeout(timer);
      if (isBusy || stop.signal.aborted) return;
      isBusy = true;
      try {
        const value = await (await send("GET", url, { signal: stop.signal })).json();
        if (stop.signal.aborted) return;
        forget();
        setState({ value, of: url, error: null });
      } catch (error) {
        if (stop.signal.aborted) return;
        const shown = noted(error);
        setState((was) => ({ ...was, error: shown }));
        if (shown.status !== 0 && shown.status < 500) return forget(); // another try would have the same answer
        timer = window.setTimeout(run, pause);
        pause = Math.min(pause * 2, LONGEST_PAUSE_MS);
      } finally {
        isBusy = false;
      }
    };
    const forget = onReturn(run);
    run();
    return () => {
      stop.abort();
      clearTimeout(timer);
      forget();
    };
  }, [url, turn]);
  const again = useCallback(() => setTurn((was) => was + 1), []);
  return { ...state, again };
}
