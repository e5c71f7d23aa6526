// What was asked for: the command, the code with its difference from a commit, and the environment.
import { address, readBytes } from "../api.js";
import { html, useState } from "../lib.js";
import { Download } from "../parts/download.js";
import { Panel } from "../parts/panel.js";
import { useRead } from "../reading.js";
import { labelOf } from "../record.js";
import { clock, duration, fullTime, plural, size } from "../words.js";

/** Most lines of a difference that are shown. */
const MOST_LINES = 5000;

/** @param {string} line */
function kindOf(line) {
  if (/^(diff --git |\+\+\+ |--- |index |new file|deleted file)/.test(line)) return "d-file";
  if (line.startsWith("@@")) return "d-place";
  return line.startsWith("+") ? "d-add" : line.startsWith("-") ? "d-del" : "";
}

/** @param {{path: string}} props */
function Diff({ path }) {
  const [text, setText] = useState(/** @type {string | null} */ (null));
  const [wrong, setWrong] = useState("");
  const show = async () => {
    try {
      setText(new TextDecoder().decode((await readBytes(`${path}/diff`)).bytes));
    } catch (error) {
      setWrong(/** @type {Error} */ (error).message);
    }
  };
  if (wrong) return html`<p class="none"><bdi>${wrong}</bdi></p>`;
  if (text === null) return html`<button type="button" onClick=${show}>Show the changes</button>`;
  const lines = text.replace(/\n$/, "").split("\n");
  return html`
    <div class="diff" tabindex="0" role="region" aria-label="Changes of the code">
      ${lines.slice(0, MOST_LINES).map((line, place) => html`<div key=${place} class=${kindOf(line)}>${line || " "}</div>`)}
    </div>
    ${lines.length > MOST_LINES ? html`<p class="none">and ${plural(lines.length - MOST_LINES, "more line")}: gpuqueue show --diff prints all</p>` : null}
  `;
}

/** The files that a run has made: those in its copy of the code, or what was kept of them. @param {{path: string, label: string, attempt: number}} props */
function Files({ path, label, attempt }) {
  /** @type {import("../reading.js").Once<{state: string, size_bytes: number | null, expires_at: string | null, reason: string | null}>} */
  const { value: kept } = useRead(address(`${path}/files/kept`, { run: attempt }));
  return html`
    <${Download} path=${address(`${path}/files`, { run: attempt })} title="An archive (tar) of the files that the run has made or changed" empty="This run has made or changed no file in its copy of the code.">Download its files<//>
    ${kept?.size_bytes ? html` <small>${size(kept.size_bytes)} kept${kept.expires_at ? html`, until <time datetime=${kept.expires_at} title=${fullTime(kept.expires_at)}>${clock(kept.expires_at)}</time>` : null}</small>` : null}
    ${kept?.reason && kept.state !== "none" ? html` <small><bdi>${kept.reason}</bdi></small>` : null}
    <small> or type <code>gpuqueue fetch ${label}</code></small>`;
}

/** @param {{env: Record<string, string>}} props */
function Environment({ env }) {
  const names = Object.keys(env).sort();
  if (!names.length) return null;
  return html`
    <details><summary>${plural(names.length, "variable")} of the environment</summary>
      <table class="variables" aria-label="Variables"><tbody>${names.map((each) => html`<tr key=${each}><th scope="row">${each}</th><td>${env[each]}</td></tr>`)}</tbody></table>
    </details>
  `;
}

/** @param {{label: string, children?: any}} props */
const Fact = ({ label, children }) => html`<div><dt>${label}</dt><dd>${children}</dd></div>`;

/** @param {{view: import("../job-types.js").JobView, path: string, run: import("../job-types.js").Run | null}} props */
export function Request({ view, path, run }) {
  const { job } = view.record;
  const { spec } = job;
  const { git, snapshot } = spec;
  const isFromPage = spec.cwd === "/" && snapshot; // such a job has its code, and no directory
  const retries = spec.retries.times ? `at most ${spec.retries.times}, after ${spec.retries.on.join(", ").replaceAll("_", " ")}` : "";
  return html`
    <${Panel} name="request" title="What was asked for">
      <dl class="facts">
        <${Fact} label="Asked">${view.asked}<//>
        <${Fact} label="Time limit">${spec.time_limit_s === null ? "none" : duration(spec.time_limit_s)}<//>
        ${view.limits ? html`<${Fact} label="Limits">${view.limits}<//>` : null}
        ${retries ? html`<${Fact} label="Retries">${retries}<//>` : null}
        ${spec.notifications.length ? html`<${Fact} label="Notifies"><bdi>${spec.notifications.map(({ to, when }) => (when === "fail" ? `${to} unless it succeeds` : to)).join(", ")}</bdi><//>` : null}
        ${spec.waits.begin_at ? html`<${Fact} label="Begins"><time datetime=${spec.waits.begin_at} title=${fullTime(spec.waits.begin_at)}>${clock(spec.waits.begin_at)}</time><//>` : null}
        ${view.rights.arguments ? html`
          <${Fact} label="Command"><pre class="command">${view.command}</pre><//>
          <${Fact} label="Directory">${isFromPage ? html`none: it was submitted from the web page <small>on <bdi>${spec.account.host}</bdi></small>` : html`<code>${spec.cwd}</code> <small>on <bdi>${spec.account.host}</bdi></small>`}<//>
          ${git ? html`<${Fact} label="Git"><bdi>${view.git}</bdi><//>` : null}
          ${snapshot ? html`<${Fact} label="Code">a copy of its own, snapshot <code>${snapshot.slice(0, 12)}</code>${spec.keep.length ? html`, keeps <code>${spec.keep.join(" ")}</code>` : null}<//>
            ${run && view.rights.logs && !spec.array ? html`<${Fact} label="Files"><${Files} path=${path} label=${labelOf(job)} attempt=${run.attempt} /><//>` : null}
            ${git ? html`<${Fact} label="Changes"><${Diff} path=${path} /><//>` : null}` : null}
          ${spec.container ? html`<${Fact} label="Container"><code>${[spec.container, ...spec.binds].join("  ")}</code><//>` : null}
          ${spec.environment ? html`<${Fact} label="Python">environment <bdi>${spec.environment}</bdi><//>` : spec.interpreter ? html`<${Fact} label="Python"><code>${spec.interpreter}</code><//>` : null}
          ${spec.array ? html`<${Fact} label="Members"><code>${spec.array.axes.map((each) => each.replace(/^@\+?/, "")).join("  ") || spec.array.indexes}</code>${spec.array.at_once ? `, at most ${spec.array.at_once} at once` : ""}<//>` : null}
        ` : html`<${Fact} label="Command"><span class="none">only ${spec.account.name} and administrators see it</span><//>`}
      </dl>
      ${view.rights.arguments ? html`<${Environment} env=${spec.env} />` : null}
    <//>
  `;
}
