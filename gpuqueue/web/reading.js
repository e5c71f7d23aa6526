// Reading once: for what does not change each second.
import { noted, send } from "./api.js";
import { useCallback, useEffect, useState } from "./lib.js";

/**
 * @template T
 * @typedef {{value: T | null, of: string | null, error: import("./api.js").ApiError | null, again: () => void}} Once
 */

/**
 * Read an address when it changes, and when `again` is called. Until the new value is there, the last one stays. `of` is
 * the address that `value` came from.
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
    const run = async () => {
      try {
        const value = await (await send("GET", url, { signal: stop.signal })).json();
        if (!stop.signal.aborted) setState({ value, of: url, error: null });
      } catch (error) {
        if (stop.signal.aborted) return;
        const shown = noted(error);
        setState((was) => ({ ...was, error: shown }));
      }
    };
    run();
    return () => stop.abort();
  }, [url, turn]);
  const again = useCallback(() => setTurn((was) => was + 1), []);
  return { ...state, again };
}
