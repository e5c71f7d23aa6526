// Answers questions for room on devices that come as JSON on standard input, and prints the answers as JSON.
import { answer, roomOn } from "../../../../gpuqueue/web/room.js";

let input = "";
for await (const each of process.stdin) input += each;
const { devices, questions } = JSON.parse(input);
console.log(JSON.stringify(questions.map(([bytes, count]) => ({ rooms: devices.map((each) => roomOn(each, bytes, count)), ...answer(devices, bytes, count, 0) }))));
