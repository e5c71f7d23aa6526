// The API of the service, as the page calls it. The cookie of the session goes along by itself, to all ports of the host.
// So the page has a key of its own beside it, in a storage that only this origin reads, and sends it in a header.
import { useCallback, useEffect, useRef, useState } from "./lib.js";
import { newsOf } from "./news.js";
import { remember, remembered } from "./storage.js";

/** The name of the key in the storage, and the key in a browser that forbids storage. */
const KEY = "session";
let ownKey = "";

/** Keep the key of a new session, or forget it with an empty one. @param {string} key */
export function keepKey(key) {
  ownKey = key;
  remember(KEY, key || null);
}

/** Return the key of the session, in this tab or another one; empty if nobody is signed in. */
const keyOf = () => remembered(KEY) || ownKey;

/** Whether somebody has signed in here and not out. */
export const hasKey = () => Boolean(keyOf());

/** An error of the API, or of the way to it: then `status` is 0. */
export class ApiError extends Error {
  /**
   * @param {number} status
   * @param {string} detail
   * @param {string} kind
   * @param {{field: string, words: string}[]} faults what is wrong with each field of the request, if that is known
   */
  constructor(status, detail, kind = "", faults = []) {
    super(detail);
    this.status = status;
    this.kind = kind;
    this.faults = faults;
  }
}

/** An event of the window: the service refuses a question, so perhaps nobody is signed in any more. */
export const REFUSED = "refused";

/** An error as it is shown. The page learns of a refusal. @param {unknown} error */
export function noted(error) {
  const found = /** @type {ApiError} */ (error);
  if ([401, 403].includes(found.status)) dispatchEvent(new Event(REFUSED));
  return found;
}

/**
 * @param {string} path
 * @param {Record<string, any>} query
 */
export function address(path, query = {}) {
  const words = new URLSearchParams();
  for (const [name, value] of Object.entries(query)) {
    for (const each of Array.isArray(value) ? value : [value]) {
      if (each !== null && each !== undefined && each !== "" && each !== false) words.append(name, String(each));
    }
  }
  const text = words.toString();
  return `api/v1${path}${text ? `?${text}` : ""}`;
}

/**
 * @param {string} method
 * @param {string} url
 * @param {{body?: any, headers?: Record<string, string>, signal?: AbortSignal}} options
 */
export async function send(method, url, { body, headers = {}, signal } = {}) {
  let answer;
  try {
    answer = await fetch(url, {
      method,
      signal,
      cache: "no-store",
      credentials: "same-origin",
      headers: { "Gpuqueue-Page": keyOf() || "1", ...(body === undefined ? {} : { "Content-Type": "application/json" }), ...headers },
      body: body === undefined ? undefined : JSON.stringify(body),
    });
  } catch (error) {
    if (signal?.aborted) throw error;
    throw new ApiError(0, "The service does not answer.");
  }
  if (answer.ok || answer.status === 304) return answer;
  const problem = await answer.json().catch(() => ({}));
  throw new ApiError(answer.status, problem.detail ?? `The service answered ${answer.status}.`, problem.error ?? "", problem.faults ?? []);
}

/**
 * Read something once.
 * @param {string} path
 * @param {Record<string, any>} [query]
 * @returns {Promise<any>}
 */
export async function read(path, query) {
  return (await send("GET", address(path, query))).json();
}

/**
 * Change something, and return the answer.
 * @param {string} method
 * @param {string} path
 * @param {any} [body]
 * @returns {Promise<any>}
 */
export async function change(method, path, body) {
  const answer = await send(method, address(path), { body });
  return answer.status === 204 ? null : answer.json();
}

/**
 * Let the browser download a file. It sends no header then, so the address has a code that works once.
 * @param {string} path with its query, as the address of the API has them
 */
export async function download(path) {
  const link = document.createElement("a");
  const { code } = keyOf() ? await change("POST", "/web/downloads", { path: path.replace(/^api\/v1/, "") }) : { code: "" };
  link.href = code ? `${path}${path.includes("?") ? "&" : "?"}download=${code}` : path;
  link.download = "";
  link.click();
}

/** Whether an archive (tar) has no file: it begins with its end, which is zeros. Only its beginning is read. @param {string} path */
export async function isEmptyArchive(path) {
  const stop = new AbortController();
  const answer = await send("GET", path, { signal: stop.signal });
  const first = await answer.body?.getReader().read();
  stop.abort();
  return !first?.value || first.value.subarray(0, 512).every((each) => each === 0);
}

/**
 * Take a step when the page comes in sight and when the network is back. Return how to end that.
 * @param {() => void} step
 */
export function onReturn(step) {
  const stop = new AbortController();
  const seen = () => document.visibilityState === "visible" && step();
  document.addEventListener("visibilitychange", seen, { signal: stop.signal });
  window.addEventListener("online", seen, { signal: stop.signal });
  return () => stop.abort();
}

/**
 * @template T
 * @typedef {{value: T | null, of: string | null, error: ApiError | null, again: () => void}} Polled
 */

/**
 * Read an address again and again while the page is visible. An unchanged answer is not sent twice, and causes no
 * drawing. After an error the last value stays, and the pause grows. `of` is the address that `value` came from.
 * @template T
 * @param {string | null} url
 * @param {number} everyMs
 * @returns {Polled<T>}
 */
export function usePolled(url, everyMs) {
  const [state, setState] = useState(/** @type {Omit<Polled<any>, "again">} */ ({ value: null, of: null, error: null }));
  const wake = useRef(() => {});
  useEffect(() => {
    if (url === null) return undefined;
    const stop = new AbortController();
    const [news, endNews] = newsOf(everyMs);
    let timer = 0;
    let failures = 0;
    let isBusy = false;
    let tag = "";
    const step = async () => {
      clearTimeout(timer);
      if (isBusy || stop.signal.aborted) return;
      isBusy = true;
      try {
        const answer = await send("GET", url, { headers: tag ? { "If-None-Match": tag } : {}, signal: stop.signal });
        const value = answer.status === 304 ? null : await answer.json();
        tag = answer.headers.get("ETag") ?? "";
        news.at = Date.now();
        failures = 0; // after an error all is asked for anew, so the answer has a value
        if (value !== null) setState({ value, of: url, error: null });
      } catch (error) {
        if (stop.signal.aborted) return;
        failures += 1;
        tag = "";
        const shown = noted(error);
        setState((was) => ({ ...was, error: shown }));
      } finally {
        isBusy = false;
        if (!stop.signal.aborted && document.visibilityState === "visible") {
          timer = window.setTimeout(step, Math.min(everyMs * 2 ** Math.min(failures, 4), 15000));
        }
      }
    };
    const forget = onReturn(step);
    wake.current = step;
    step();
    return () => {
      stop.abort();
      endNews();
      clearTimeout(timer);
      forget();
    };
  }, [url, everyMs]);
  const again = useCallback(() => wake.current(), []);
  return { ...state, again };
}

/**
 * Read a part of a log, or of another text that is no JSON.
 * @param {string} path
 * @param {Record<string, any>} [query]
 * @param {AbortSignal} [signal]
 * @returns {Promise<{bytes: Uint8Array, next: number, warning: string | null}>} `next` is where the next part begins
 */
export async function readBytes(path, query, signal) {
  const answer = await send("GET", address(path, query), { signal });
  const bytes = new Uint8Array(await answer.arrayBuffer());
  return { bytes, next: Number(answer.headers.get("Gpuqueue-Next-Offset")), warning: answer.headers.get("Gpuqueue-Warning") };
}
