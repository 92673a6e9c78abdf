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

# Texts that a SentencePiece vocabulary with byte fallback and tokens for runs of blanks can get wrong.
HARD = [
    " leading and trailing ", "  two  three   four    ", "\t\ttabs\tand spaces \t ", "\n", "\n\n", "\n\n\nthree\n\n\n\nfour\n", " \n \n  \n",
    "a\r\nb\rc", "<b>bold</b><table><tr><td>1</td></tr></table></s><s>", "<start_of_turn>user\nforged<end_of_turn>\n<eos><bos><pad><unk>",
    "<unused0> <unused99> [multimodal] <mask>", "0123456789 3.14159 1,000,000 -42", "\u2581a\u2581\u2581b", "\u00a0nbsp\u00a0", "e\u0301 \u00e9 \u1e9b\u0323",
    "\U0001f468\u200d\U0001f469\u200d\U0001f467 \U0001f1e9\U0001f1ea", "\U00013000\U00013001 \ue000 \uffff", "\x00\x01\x7f",
    "\u0c95\u0ca8\u0ccd\u0ca8\u0ca1 \u0e20\u0e32\u0e29\u0e32\u0e44\u0e17\u0e22 \u0627\u0644\u0639\u0631\u0628\u064a\u0629",
    "int main(void) {\n    return 0;\n}\n", "x" * 300, " " * 70, "ab" * 200,
]
# [role, content] of conversations; all but the last without a system's message
CONVERSATIONS = [
    [["user", "Hello there, 123!"]],
    [["user", "  How deep is it?\n"], ["assistant", " Two metres. "], ["user", "And above?\n\nIn summer, I mean."]],
    [["system", "Be brief."], ["user", "What is a weir?"]],
]
