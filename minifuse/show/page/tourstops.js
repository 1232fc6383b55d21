/** What the tour tells, stop by stop. */

/**
 * @typedef {{title: string, words: string, selector: string}} TourStop
 *     `selector`: the parts of the page that are told of; a stop is left out where the page shows none of them
 */

/** @type {TourStop[]} */
export const TOUR_STOPS = [
  {
    title: "All runs at a glance",
    selector: "#overview",
    words: "A card for each run: its lanes in small, what its technique did, and the memory in use, all on one scale. A and B choose the two runs that are shown below.",
  },
  {
    title: "Lanes",
    selector: "#side-a, #side-b",
    words: "A row for each request, a column for each iteration; the legend above says what colours and patterns mean. A click on a row tells the story of its request.",
  },
  {
    title: "One moment",
    selector: ".transport",
    words: "Play, drag the slider, or press the arrow keys. The line in the lanes and in every card is at the moment that is shown.",
  },
  {
    title: "Memory",
    selector: ".memory-area",
    words: "Which request owns each slot in this iteration, which slots are free, and what is moved. Point at a slot to read all about it.",
  },
  {
    title: "Reasons",
    selector: "#now-part, #why-part",
    words: "What was decided in this iteration, and why each of the other requests has to wait, in the words of the policy.",
  },
  {
    title: "Where A and B part",
    selector: "#differences",
    words: "f goes to the first decision in which they differ; n and p to the next and the previous moment at which they begin to disagree about a request.",
  },
  {
    title: "Predict",
    selector: "#predict",
    words: "Tick the box: the page stops before each decision and asks what will happen. What comes later is covered until you have answered.",
  },
  {
    title: "Keys",
    selector: "#help",
    words: "All keys, and how an address names what the page shows. This tour is g.",
  },
];
