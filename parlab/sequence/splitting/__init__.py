"""A text cut into chunks, which go to the ranks.

`chunks`       a chunk; cuts of equal length, and by memory
`text`         cuts by sentences or paragraphs
`balance`      cuts by work, and how even it is
`attention`    cuts that the least attention crosses
`analysis`     the measures of an attention map
"""
