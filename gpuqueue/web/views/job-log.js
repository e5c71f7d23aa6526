// The output of a run: colours, progress bars, search, and following it without losing the place of the reader.
import { address } from "../api.js";
import { useKeys } from "../keys.js";
import { html, useEffect, useLayoutEffect, useMemo, useRef, useState } from "../lib.js";
import { FIRST_LINES, useLog } from "../log-reader.js";
import { MOST_LINES, addressesIn, marked, styled, textOf } from "../log-text.js";
import { Download } from "../parts/download.js";
import { Panel } from "../parts/panel.js";
import { Tabs } from "../parts/tabs.js";
import { remember, remembered } from "../storage.js";
import { plural } from "../words.js";
import { LogSearch } from "./log-search.js";

/** Lines that are drawn together, and not again while none of them changes. */
const CHUNK = 100;
/** With fewer lines the box of an ended run is only as high as they are. */
const SHORT = 20;
/** So near to the end, in pixels, the reader is at the end. */
const NEAR = 12;

/** @typedef {import("../log-text.js").Line} Line */
/** @typedef {import("../log-text.js").LogText} LogText */
/** @typedef {{id: number, key: string, node: any}} Drawn */

/** So many bytes before a line that was found are shown with it. */
const BEFORE_BYTES = 4096;

/** A text whose addresses are links. @param {string} text */
const linked = (text) => addressesIn(text).map((each) => (each.isAddress ? html`<a href=${each.text} target="_blank" rel="noopener noreferrer">${each.text}</a>` : each.text));

/** @param {Line} line @param {number} number @param {string} wanted @param {boolean} isFound */
function lineNode(line, number, wanted, isFound) {
  return html`<div key=${number} class=${isFound ? "line found" : "line"} data-line=${number}>${marked(line, wanted).map((run, place) => {
    const { names, own } = styled(run.style);
    if (run.isMatch) return html`<mark key=${place}>${run.text}</mark>`;
    return names || own ? html`<span key=${place} class=${names} style=${own}>${linked(run.text)}</span>` : linked(run.text);
  })}</div>`;
}

/** The lines in chunks. A chunk that has not changed is the same node, which Preact passes over. */
function useChunks() {
  const known = useRef(/** @type {Map<number, Drawn>} */ (new Map()));
  const of = useRef(/** @type {LogText | null} */ (null));
  /** @param {LogText} log @param {string} wanted @param {number} found the number of the line that is shown, -1: none */
  return (log, wanted, found) => {
    if (of.current !== log) known.current = new Map();
    of.current = log;
    /** @type {Map<number, Drawn>} */
    const next = new Map();
    const nodes = [];
    const end = log.dropped + log.lines.length;
    for (let first = log.dropped - (log.dropped % CHUNK); first < end; first += CHUNK) {
      const from = Math.max(first, log.dropped);
      const lines = log.lines.slice(from - log.dropped, first + CHUNK - log.dropped);
      const isHere = found >= first && found < first + CHUNK;
      const key = `${from} ${lines.length} ${lines.reduce((sum, each) => sum + each.version, 0)} ${isHere ? found : ""} ${wanted}`;
      const was = known.current.get(first);
      const node = was?.key === key ? was.node : html`<div key=${first} class="chunk">${lines.map((line, place) => lineNode(line, from + place, wanted, from + place === found))}</div>`;
      next.set(first, { id: first, key, node });
      nodes.push(node);
    }
    known.current = next;
    return nodes;
  };
}

/** The numbers of the lines with a match. @param {LogText} log @param {string} wanted */
function matchesIn(log, wanted) {
  /** @type {number[]} */
  const found = [];
  if (wanted) log.lines.forEach((line, place) => textOf(line).toLowerCase().includes(wanted) && found.push(log.dropped + place));
  return found;
}

/**
 * @param {object} props
 * @param {import("../job-types.js").JobView} props.view
 * @param {import("../job-types.js").Run} props.run
 * @param {string} props.path
 * @param {boolean} props.isNow
 */
export function Log({ view, run, path, isNow }) {
  const name = "Output";
  if (!view.rights.logs) return html`<${Panel} name="log" title=${name}><p class="none">Only ${view.record.job.spec.account.name} and administrators read it.</p><//>`;
  if (!run.log_path) return html`<${Panel} name="log" title=${name}><p class="none">${run.ending ? "This run has no output: it did not start." : "The run is about to start."}</p><//>`;
  return html`<${Output} view=${view} run=${run} path=${path} isNow=${isNow} />`;
}

/**
 * @param {object} props
 * @param {import("../job-types.js").JobView} props.view
 * @param {import("../job-types.js").Run} props.run
 * @param {string} props.path
 * @param {boolean} props.isNow
 */
function Output({ view, run, path, isNow }) {
  const [stream, setStream] = useState("log");
  const [lines, setLines] = useState(/** @type {number | null} */ (FIRST_LINES));
  const [from, setFrom] = useState(0);
  const [isFollowing, setFollowing] = useState(true);
  const [doesWrap, setWrap] = useState(remembered("wrap") !== "off");
  const [text, setText] = useState("");
  const [place, setPlace] = useState(0);
  const box = useRef(/** @type {HTMLDivElement | null} */ (null));
  const field = useRef(/** @type {HTMLInputElement | null} */ (null));
  const draw = useChunks();
  const shown = useLog(path, { attempt: run.attempt, stream, lines, from, isNow, mayDrop: isFollowing });
  const { log, version } = shown;
  const wanted = text.toLowerCase();
  const matches = useMemo(() => matchesIn(log, wanted), [log, version, wanted]);
  const found = matches.length ? matches[Math.min(place, matches.length - 1)] : -1;
  const nodes = useMemo(() => draw(log, wanted, found), [log, version, wanted, found]);

  useLayoutEffect(() => {
    if (isFollowing && box.current) box.current.scrollTop = box.current.scrollHeight;
  }, [version, isFollowing, doesWrap, log]);
  const scrolled = () => {
    if (!box.current) return; // the last scroll of a log may be reported after the log was left
    const { scrollTop, scrollHeight, clientHeight } = box.current;
    setFollowing(scrollHeight - scrollTop - clientHeight <= NEAR);
  };
  /** @param {number} by */
  const go = (by) => {
    if (!matches.length) return;
    setFollowing(false);
    setPlace((Math.min(place, matches.length - 1) + by + matches.length) % matches.length);
  };
  useEffect(() => {
    if (found < 0 || isFollowing) return;
    const line = box.current?.querySelector(`[data-line="${found}"]`);
    if (box.current && line) box.current.scrollTop += line.getBoundingClientRect().top - box.current.getBoundingClientRect().top - box.current.clientHeight / 2;
  }, [found, wanted, log]);
  /** @param {any} event */
  const typed = (event) => {
    setText(event.currentTarget.value);
    setPlace(0);
    if (event.currentTarget.value) setFollowing(false);
  };
  /** @param {KeyboardEvent} event */
  const pressed = (event) => {
    if (event.key === "Enter") {
      event.preventDefault();
      go(event.shiftKey ? -1 : 1);
    }
    if (event.key === "Escape") {
      event.preventDefault(); // keeps the text, for n and N
      box.current?.focus();
    }
  };
  const toBeginning = () => {
    setFollowing(false);
    setFrom(0);
    setLines(null);
    if (box.current) box.current.scrollTop = 0;
    box.current?.focus();
  };
  const toEnd = () => {
    setLines(FIRST_LINES);
    setFrom(0);
    setFollowing(true);
  };
  /** Show a line that the service has found. @param {import("./log-search.js").LogMatch} match @param {import("./log-search.js").LogMatch[]} all */
  const goTo = (match, all) => {
    const begin = Math.max(0, match.offset - BEFORE_BYTES);
    setFollowing(false);
    setLines(null);
    setFrom(begin);
    setPlace(all.filter((each) => each.offset >= begin && each.offset < match.offset).length);
  };
  const wrap = () => {
    remember("wrap", doesWrap ? "off" : null);
    setWrap(!doesWrap);
  };
  useKeys({
    "/": () => field.current?.select(),
    n: () => go(1),
    N: () => go(-1),
    f: () => (from ? toEnd() : setFollowing(true)),
    B: toBeginning,
    w: wrap,
  });

  const isShort = !isNow && log.lines.length < SHORT;
  const isEmpty = log.lines.length === 1 && !log.lines[0].length;
  const tools = html`
    ${view.record.job.spec.separate_stderr ? html`<${Tabs} label="Stream" choices=${[["log", "Output"], ["stderr", "Errors"]]} chosen=${stream} onChoose=${setStream} />` : null}
    <span class="log-search" role="search">
      <label class="hidden" for="log-text">Search the output</label>
      <input id="log-text" ref=${field} type="search" value=${text} onInput=${typed} onKeyDown=${pressed} placeholder="Search" maxlength="200" autocomplete="off" spellcheck="false" />
      ${wanted ? html`<span class="count" role="status">${matches.length ? `${Math.min(place, matches.length - 1) + 1} of ${plural(matches.length, "line")}` : "not found"}</span>
        <button type="button" aria-label="Match before" onClick=${() => go(-1)} disabled=${!matches.length}>↑</button>
        <button type="button" aria-label="Next match" onClick=${() => go(1)} disabled=${!matches.length}>↓</button>` : null}
    </span>
    <label class="check"><input type="checkbox" checked=${doesWrap} onChange=${wrap} /> Wrap</label>
    ${isNow ? html`<button type="button" aria-pressed=${isFollowing} class="toggle" onClick=${() => (from ? toEnd() : setFollowing(!isFollowing))}>Follow</button>` : null}
    <${Download} path=${address(`${path}/log/file`, { attempt: run.attempt, stream })}>Download<//>`;
  return html`
    <${Panel} name="log" title=${view.record.runs.length > 1 ? `Output of run ${run.attempt}` : "Output"} tools=${html`<div class="log-tools">${tools}</div>`}>
      ${shown.wrong ? html`<p class="banner" role="status"><bdi>${shown.wrong}</bdi></p>` : null}
      ${shown.warning ? html`<p class="banner" role="status"><bdi>${shown.warning}</bdi></p>` : null}
      ${shown.isFull ? html`<p class="banner" role="status">There is more output. It is read on when you follow it.</p>` : null}
      ${!shown.isWhole || log.dropped ? html`<p class="log-more">${from ? "These lines are from the middle." : log.dropped ? `These are the last ${plural(log.lines.length, "line")}.` : "These are the last lines."}
        <button type="button" class="plain" onClick=${toBeginning}>Beginning</button>
        ${from ? html`<button type="button" class="plain" onClick=${toEnd}>End</button>` : null}
        ${from || log.dropped ? null : html`<button type="button" class="plain" onClick=${() => { setFollowing(false); setLines((lines ?? 0) * 8 >= MOST_LINES ? null : (lines ?? 0) * 8); }}>Show more</button>`}</p>` : null}
      ${wanted && (!shown.isWhole || log.dropped || shown.isFull) ? html`<${LogSearch} path=${path} run=${{ attempt: run.attempt, stream }} wanted=${text.trim()} onGo=${goTo} />` : null}
      <div class=${`log-lines ${doesWrap ? "wraps" : ""} ${isShort ? "short" : ""}`} ref=${box} onScroll=${scrolled} tabindex="0" role="region" aria-label="Output, scrollable">
        ${isEmpty ? html`<p class="none">${isNow ? "Nothing was written yet." : shown.wrong ? "" : "Nothing was written."}</p>` : nodes}
      </div>
    <//>
  `;
}
