// Writes outputs into the page's terminal, and prints its lines as JSON. The cases come as JSON on standard input.
import { LogText, marked, styled, textOf } from "../../../../gpuqueue/web/log-text.js";

let input = "";
for await (const each of process.stdin) input += each;
const found = JSON.parse(input).map(({ pieces, most, search }) => {
  const log = new LogText(most ?? 100);
  for (const each of pieces) log.write(each);
  return {
    lines: log.lines.map(textOf),
    runs: log.lines.map((line) => marked(line, search ?? "").map((each) => [each.text, styled(each.style).names, styled(each.style).own ?? null, Boolean(each.isMatch)])),
    dropped: log.dropped,
    pending: log.pending,
  };
});
console.log(JSON.stringify(found));
