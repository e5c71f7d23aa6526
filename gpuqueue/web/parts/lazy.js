// A view whose modules are loaded when it is first shown, so that the page begins without them. While the service does
// not answer, it tries again and again.
import { ApiError, onReturn } from "../api.js";
import { html, useEffect, useState } from "../lib.js";
import { NO_ANSWER, Trouble } from "./trouble.js";

const AGAIN_MS = 2000;

/**
 * @param {() => Promise<any>} load returns the component
 * @returns {(props: any) => any}
 */
export function lazy(load) {
  /** @type {any} */
  let found = null;
  return function Lazy(props) {
    const [, draw] = useState(false);
    const [error, setError] = useState(/** @type {ApiError | null} */ (null));
    useEffect(() => {
      if (found) return undefined;
      let timer = 0;
      let isOver = false;
      const step = async () => {
        clearTimeout(timer);
        try {
          found = found ?? (await load());
          if (!isOver) draw(true);
        } catch {
          if (isOver) return;
          setError(new ApiError(0, NO_ANSWER));
          timer = window.setTimeout(step, AGAIN_MS);
        }
      };
      const forget = onReturn(() => found || step());
      step();
      return () => {
        isOver = true;
        clearTimeout(timer);
        forget();
      };
    }, []);
    return found ? html`<${found} ...${props} />` : html`<${Trouble} error=${error} /><p class="loading">Loading…</p>`;
  };
}
