"""What a line of work writes down while it runs: a flat list of (code, operand) pairs, in the order of its program."""

POST_SEND = 0  # operand: the Message; from here on the rank holds what it sends, until the message has passed
POST_RECEIVE = 1  # the Message; from here on the rank holds the memory that it will arrive in
WAIT = 2  # the Message
COMPUTE = 3  # (name, flops, bytes, seconds or None)
ENTER = 4  # the CollectiveCall: entered, and left at once or, if it is a joint one, when all have entered
HOLD = 5  # (name, bytes), negative when memory dies
PRINT = 6  # the text
SIGNAL = 7  # the Signal: raised here
AWAIT = 8  # the Signal: waited for here
