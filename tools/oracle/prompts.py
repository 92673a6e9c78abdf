"""The prompts of the golden logits: our own words in several scripts, with one empty, one long and one chat among them."""


def gauge_log():
    """About 900 tokens of a log whose next line can be guessed."""
    lines = ["Readings at the mill weir. Each line gives the day, the level in centimetres and a remark."]
    remarks = ["calm water", "light rain upstream", "the gate was opened by a hand", "leaves on the rack, removed",
               "clear and cold"]
    for day in range(1, 46):
        lines.append(f"Day {day}: level {31 + (day * 7) % 13}.{(day * 3) % 10} cm, {remarks[(day * day) % len(remarks)]}.")
    return "\n".join(lines) + "\nDay 46:"


# name, text; CHAT is rendered with the model's own template
PROMPTS = [
    ("empty", ""),
    ("english", "A weir is a low dam that is built across a river to"),
    ("question", "Question: Which planet is the largest in the solar system?\nAnswer:"),
    ("code_c", "/* Returns the largest of n numbers; n is at least 1. */\n"
               "int largest(const int *a, int n) {\n  int best = a[0];\n  for ("),
    ("code_python", "def fibonacci(n):\n    \"\"\"The n-th Fibonacci number, counted from 0.\"\"\"\n    if n < 2:\n"),
    ("german", "Der Müller öffnet früh am Morgen das Wehr, und das Wasser fließt"),
    ("japanese", "川の水はゆっくりと流れて、やがて海に"),
    ("emoji", "Weather today: ☀️🌧️🌈 and my mood is 🙂👍🏽 because"),
    ("numbers", "2, 4, 8, 16, 32, 64,"),
    ("spaces", "  name   |  depth \n\tupper\t|\t12 m\n\n\n   lower |"),
    ("long", gauge_log()),
    ("chat", None),
]
CHAT_USER = "Name three things that a lock keeper does in a day. Be brief."
