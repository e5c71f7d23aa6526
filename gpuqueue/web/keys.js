// Single keys and pairs such as "g q". They do nothing in a field, and not at all if the user has switched them off.
import { useEffect, useRef } from "./lib.js";
import { remembered } from "./storage.js";

/** How long the second key of a pair may take, in milliseconds. */
const PAIR_MS = 1000;

/** @param {EventTarget | null} target */
function isField(target) {
  return target instanceof HTMLElement && Boolean(target.closest("input:not([type=checkbox]), textarea, select, dialog"));
}

/** Whether the key does something in the element itself, as Enter does on a link. @param {KeyboardEvent} event */
function isOwn({ key, target }) {
  return key === "Enter" && target instanceof HTMLElement && Boolean(target.closest("a, button, summary, input"));
}

/**
 * Do something at a key while the component is shown.
 * @param {Record<string, (event: KeyboardEvent) => void>} keys
 */
export function useKeys(keys) {
  const latest = useRef(keys);
  latest.current = keys;
  useEffect(() => {
    let before = "";
    let beforeAt = 0;
    /** @param {KeyboardEvent} event */
    const pressed = (event) => {
      if (event.ctrlKey || event.metaKey || event.altKey || event.defaultPrevented || isField(event.target) || isOwn(event)) return;
      if (remembered("keys") === "off" && event.key !== "?") return;
      const pair = event.timeStamp - beforeAt < PAIR_MS ? `${before} ${event.key}` : "";
      const act = latest.current[pair] ?? latest.current[event.key];
      before = event.key;
      beforeAt = event.timeStamp;
      if (act) {
        event.preventDefault();
        act(event);
      }
    };
    addEventListener("keydown", pressed);
    return () => removeEventListener("keydown", pressed);
  }, []);
}
