// The output of a job as lines of styled text, as a terminal would show it: colours, carriage returns, progress bars.
// It only collects text. The view makes text nodes of it, so nothing in a log is ever markup.

/** Most lines that are kept, most characters of a line, and most characters of an unfinished escape sequence. */
export const MOST_LINES = 10000;
const MOST_LENGTH = 20000;
const MOST_PENDING = 4096;

/** Text without control characters, except tabs; complete escape sequences; any other character. */
const TOKEN = /[^\x00-\x08\x0a-\x1f\x7f-\x9f]+|\x1b\[([0-?]*)[ -/]*([@-~])|\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)|\x1b[PX^_][^\x1b]*\x1b\\|\x1b[ -/]+[0-~]|\x1b[0-~]|[^]/g;
const WHOLE = /^\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)|[PX^_][^\x1b]*\x1b\\|[ -/]+[0-~]|[0-OQ-WYZ`-~\\])/;

/** @typedef {{text: string, style: string}} Run a piece of a line; `style` is a list of words, see `styled` */
/** @typedef {{runs: Run[], length: number, version: number}} Line */

/** @returns {Line} */
const empty = () => ({ runs: [], length: 0, version: 0 });

/** The part of the runs between two columns. @param {Run[]} runs @param {number} from @param {number} to */
function part(runs, from, to) {
  const found = [];
  let at = 0;
  for (const { text, style } of runs) {
    const begin = Math.max(from - at, 0);
    const end = Math.min(to - at, text.length);
    if (begin < end) found.push({ text: text.slice(begin, end), style });
    at += text.length;
  }
  return found;
}

/** Put text over a line from a column on. @param {Line} line @param {number} column @param {string} text @param {string} style */
function put(line, column, text, style) {
  const last = line.runs[line.runs.length - 1];
  if (column === line.length && last && last.style === style) last.text += text;
  else if (column >= line.length) {
    if (column > line.length) line.runs.push({ text: " ".repeat(column - line.length), style: "" });
    line.runs.push({ text, style });
  } else {
    line.runs = [...part(line.runs, 0, column), { text, style }, ...part(line.runs, column + text.length, line.length)];
  }
  line.length = Math.max(line.length, column + text.length);
  line.version += 1;
}

const SET = /** @type {Record<number, string>} */ ({ 1: "b", 2: "dim", 3: "i", 4: "u", 7: "inv", 9: "s" });
const UNSET = /** @type {Record<number, string[]>} */ ({ 22: ["b", "dim"], 23: ["i"], 24: ["u"], 27: ["inv"], 29: ["s"] });
const CUBE = [0, 95, 135, 175, 215, 255];

/** One of 256 colours: a word for the first 16, which have the colours of the theme, else its value. @param {number} number */
function colour(number) {
  if (number < 16) return String(number);
  if (number > 231) return `#${(8 + (Math.min(number, 255) - 232) * 10).toString(16).padStart(2, "0").repeat(3)}`;
  const place = number - 16;
  return `#${[Math.floor(place / 36), Math.floor(place / 6) % 6, place % 6].map((each) => CUBE[each].toString(16).padStart(2, "0")).join("")}`;
}

/** The style after a sequence that sets some of it. @param {string} style @param {string} codes */
function restyled(style, codes) {
  const words = new Set(style ? style.split(" ") : []);
  /** @param {string} kind @param {string | null} value */
  const paint = (kind, value) => {
    for (const each of words) if (each.startsWith(kind)) words.delete(each);
    if (value !== null) words.add(`${kind}${value}`);
  };
  const numbers = (codes || "0").split(/[;:]/).map((each) => Number.parseInt(each || "0", 10) || 0);
  for (let place = 0; place < numbers.length; place += 1) {
    const code = numbers[place];
    if (code === 0) words.clear();
    else if (SET[code]) words.add(SET[code]);
    else if (UNSET[code]) for (const each of UNSET[code]) words.delete(each);
    else if (code === 38 || code === 48) {
      const kind = code === 38 ? "fg" : "bg";
      if (numbers[place + 1] === 5) {
        paint(kind, colour(numbers[place + 2] ?? 0));
        place += 2;
      } else if (numbers[place + 1] === 2) {
        const parts = numbers.slice(place + 2, place + 5);
        paint(kind, `#${parts.map((each) => Math.min(255, each).toString(16).padStart(2, "0")).join("").padEnd(6, "0")}`);
        place += 4;
      }
    } else if (code === 39) paint("fg", null);
    else if (code === 49) paint("bg", null);
    else if (code >= 30 && code <= 37) paint("fg", String(code - 30));
    else if (code >= 40 && code <= 47) paint("bg", String(code - 40));
    else if (code >= 90 && code <= 97) paint("fg", String(code - 82));
    else if (code >= 100 && code <= 107) paint("bg", String(code - 92));
  }
  return [...words].sort().join(" ");
}

/** A control character as a visible sign. @param {string} char */
function visible(char) {
  const code = char.charCodeAt(0);
  return code < 0x20 ? String.fromCharCode(0x2400 + code) : code === 0x7f ? "\u2421" : "\ufffd";
}

/** Collects output, piece by piece, as a terminal that is as wide as its longest line. */
export class LogText {
  constructor(most = MOST_LINES) {
    this.most = most;
    /** @type {Line[]} */
    this.lines = [empty()];
    /** The number of lines that were dropped before the first one. */
    this.dropped = 0;
    this.row = 0;
    this.column = 0;
    this.style = "";
    this.pending = "";
  }

  /** Add output. A sequence at its end that is not complete waits for the next piece. @param {string} added */
  write(added) {
    let text = this.pending + added;
    this.pending = "";
    const escape = text.lastIndexOf("\x1b");
    if (escape >= 0 && text.length - escape < MOST_PENDING && !WHOLE.test(text.slice(escape))) {
      this.pending = text.slice(escape);
      text = text.slice(0, escape);
    }
    for (const found of text.matchAll(TOKEN)) this.#take(found[0], found[1], found[2]);
    this.#trim();
  }

  /** @param {string} token @param {string | undefined} codes @param {string | undefined} act */
  #take(token, codes, act) {
    if (token === "\n") {
      this.row += 1;
      this.column = 0;
      if (this.row === this.lines.length) this.lines.push(empty());
      if (this.lines.length > this.most * 2) this.#trim();
    } else if (token === "\r") this.column = 0;
    else if (token === "\b") this.column = Math.max(0, this.column - 1);
    else if (token.charCodeAt(0) === 0x1b) {
      if (act) this.#obey(act, codes ?? "");
    } else if (token === "\x07" || token === "\x00" || token === "\x0f" || token === "\x0e") return;
    else this.#text(/^[\x00-\x08\x0b-\x1f\x7f-\x9f]$/.test(token) ? visible(token) : token);
  }

  /** @param {string} text */
  #text(text) {
    const room = MOST_LENGTH - this.column;
    if (room <= 0) return;
    put(this.lines[this.row], this.column, text.length > room ? `${text.slice(0, room - 1)}…` : text, this.style);
    this.column += Math.min(text.length, room);
  }

  /** Do what a control sequence says, as far as it is about the last lines: bars of several loops move up and down.
   * @param {string} act @param {string} codes */
  #obey(act, codes) {
    const count = Math.max(1, Number.parseInt(codes, 10) || 1);
    if (act === "m") this.style = /^[<=>?]/.test(codes) ? this.style : restyled(this.style, codes);
    else if (act === "A") this.row = Math.max(0, this.row - count);
    else if (act === "B") this.row = Math.min(this.lines.length - 1, this.row + count);
    else if (act === "C") this.column = Math.min(MOST_LENGTH, this.column + count);
    else if (act === "D") this.column = Math.max(0, this.column - count);
    else if (act === "G") this.column = Math.min(MOST_LENGTH, count - 1);
    else if (act === "K") this.#erase(codes);
  }

  /** Erase the line from here on, up to here (1), or all of it (2). @param {string} codes */
  #erase(codes) {
    const line = this.lines[this.row];
    if (codes === "1") {
      const many = Math.min(this.column + 1, line.length);
      if (many) put(line, 0, " ".repeat(many), "");
      return;
    }
    const end = codes === "2" ? 0 : Math.min(this.column, line.length);
    line.runs = part(line.runs, 0, end);
    line.length = end;
    line.version += 1;
  }

  #trim() {
    const over = this.lines.length - this.most;
    if (over <= 0) return;
    this.lines.splice(0, over);
    this.dropped += over;
    this.row = Math.max(0, this.row - over);
  }
}

/** The plain text of a line. @param {Line} line */
export const textOf = (line) => line.runs.map((each) => each.text).join("");

/**
 * The runs of a line with the matches of a search apart. Letters match regardless of case.
 * @param {Line} line
 * @param {string} wanted in small letters; empty for no search
 * @returns {(Run & {isMatch?: boolean})[]}
 */
export function marked(line, wanted) {
  if (!wanted) return line.runs;
  const text = textOf(line).toLowerCase();
  const found = [];
  let from = 0;
  for (let at = text.indexOf(wanted); at >= 0; at = text.indexOf(wanted, from)) {
    found.push(...part(line.runs, from, at));
    found.push(...part(line.runs, at, at + wanted.length).map((each) => ({ ...each, isMatch: true })));
    from = at + wanted.length;
  }
  return [...found, ...part(line.runs, from, line.length)];
}

/** An address in a log. Signs at its end belong to the sentence around it. */
const ADDRESS = /\bhttps?:\/\/[^\s<>"'`\x00-\x1f]*[^\s<>"'`\x00-\x1f.,;:!?)\]}]/g;

/** The parts of a text: addresses, and what is between them. @param {string} text @returns {{text: string, isAddress: boolean}[]} */
export function addressesIn(text) {
  if (!text.includes("://")) return [{ text, isAddress: false }];
  const found = [];
  let from = 0;
  for (const match of text.matchAll(ADDRESS)) {
    if (match.index > from) found.push({ text: text.slice(from, match.index), isAddress: false });
    found.push({ text: match[0], isAddress: true });
    from = match.index + match[0].length;
  }
  if (from < text.length) found.push({ text: text.slice(from), isAddress: false });
  return found;
}

/** The classes and the colours of a style. @param {string} style @returns {{names: string, own: Record<string, string> | undefined}} */
export function styled(style) {
  if (!style) return { names: "", own: undefined };
  const names = [];
  /** @type {Record<string, string>} */
  const own = {};
  for (const word of style.split(" ")) {
    const isOwn = word[2] === "#"; // log-colours.css mixes it with the colours of the theme, so that it can be read
    if (isOwn) own[`--${word.slice(0, 2)}`] = word.slice(2);
    names.push(`t-${isOwn ? word.slice(0, 2) : word}`);
  }
  return { names: names.join(" "), own: Object.keys(own).length ? own : undefined };
}
