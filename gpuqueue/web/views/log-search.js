// The search in the whole output of a run, which the service does: the page holds only a part of it.
import { noted, read } from "../api.js";
import { html, useEffect, useRef, useState } from "../lib.js";
import { plural } from "../words.js";

/** @typedef {{line: number, offset: number, text: string}} LogMatch */
/** @typedef {{matches: LogMatch[], next_offset: number, next_line: number, ended: boolean}} LogMatches */

/**
 * @param {object} props
 * @param {string} props.path of the job
 * @param {{attempt: number, stream: string}} props.run
 * @param {string} props.wanted
 * @param {(match: LogMatch, all: LogMatch[]) => void} props.onGo
 */
export function LogSearch({ path, run, wanted, onGo }) {
  const [found, setFound] = useState(/** @type {LogMatches | null} */ (null));
  const [wrong, setWrong] = useState("");
  const [isBusy, setBusy] = useState(false);
  const latest = useRef(wanted);
  latest.current = wanted;
  useEffect(() => {
    setFound(null);
    setWrong("");
  }, [wanted, run.attempt, run.stream]);
  const search = async () => {
    setBusy(true);
    setWrong("");
    try {
      /** @type {LogMatches} */
      const more = await read(`${path}/log/search`, { ...run, text: wanted, offset: found?.next_offset, line: found?.next_line });
      if (latest.current === wanted) setFound({ ...more, matches: [...(found?.matches ?? []), ...more.matches] });
    } catch (error) {
      setWrong(noted(error).message);
    } finally {
      setBusy(false);
    }
  };
  if (!found) return html`<p class="log-more"><button type="button" disabled=${isBusy} onClick=${search}>${isBusy ? "Searching…" : "Search the whole output"}</button>${wrong ? html` <span class="bad-text" role="alert">${wrong}</span>` : null}</p>`;
  const lines = (found.next_line - 1).toLocaleString();
  return html`
    <div class="log-hits">
      <p role="status">${found.matches.length ? `${plural(found.matches.length, "line")} ${found.matches.length === 1 ? "has" : "have"} it` : "No line has it"}${found.ended ? ", of the whole output." : `, of the first ${lines} lines.`}
        ${found.ended ? null : html` <button type="button" disabled=${isBusy} onClick=${search}>Search on</button>`}
        ${wrong ? html` <span class="bad-text" role="alert">${wrong}</span>` : null}</p>
      ${found.matches.length ? html`<ol tabindex="0" aria-label="Lines of the whole output that match">
        ${found.matches.map((each) => html`<li key=${each.offset}><button type="button" class="plain" onClick=${() => onGo(each, found.matches)}><span class="number">${each.line.toLocaleString()}</span> <bdi>${each.text}</bdi></button></li>`)}
      </ol>` : null}
    </div>
  `;
}
