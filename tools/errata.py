"""What the papers print where they are wrong, for `tools.exercise start NAME --as-printed`

Each exercise has a list of (function, our lines in it, the printed ones). Our lines occur exactly
once in the file. A comment directly above them is left out as well: it explains the error that the
student should find. docs/PAPERS.md has the explanations. `python -m tools.exercise handout` writes
another such file, with the whole functions as printed, because our lines are solutions.
"""
ERRATA = {
    # Eq. 3.2: the denominator sums over the K x K places of one frame.
    'location': [('sta.Captioner.look', """\
        alpha = scores.softmax(1)                                       # Eq. 3.2  (B, F * L)
""", """\
        alpha = scores.view(uniform.shape).softmax(2)                   # Eq. 3.2  (B, F, L)
        alpha = alpha.nan_to_num().flatten(1)                           # 0 on padding frames
""")],
    # Eq. 10: no softmax
    'ts': [('stats.TimeThenSpace.forward', """\
            e = self.space(q, self.space.w_x(x)).softmax(1)             # Eq. 10  (B, L)
""", """\
            e = self.space(q, self.space.w_x(x))                        # Eq. 10  (B, L)
""")],
    # Table 4: conv3b, conv4b and conv5b are left out, and everything is shifted by one. Table 5:
    # two rows are not those of a convolution and a pooling.
    'receptive-field': [('c3d.steps_between', """\
        if is_convolution(name):
            steps.append(((3, 3, 3), (1, 1, 1), 1))
        else:
""", """\
        if name in ('conv1', 'conv2', 'conv3a', 'conv4a', 'conv5a'):
            steps.append(((3, 3, 3), (1, 1, 1), 1))
        elif not is_convolution(name):
"""), ('c3d.steps_between', """\
        kernel, padding, size = ALIGN[pool]
        steps.append(((kernel,) * 3, (1, 1, 1), padding))
        steps.append(((size,) * 3, (size,) * 3, 0))
""", """\
        table5 = {'pool2': (8, -14, 7), 'pool3': (4, -6, 4), 'pool4': (2, -2, 1)}
        stride, first, last = table5[pool]                  # i sees stride*i+first .. stride*i+last
        steps.append(((last - first + 1,) * 3, (stride,) * 3, 1 - stride - first))
"""), ('c3d.receptive_field', """\
        fields[name] = (stride, first, last)
""", """\
        shift = 1 if inside == 'video' else 0
        fields[name] = (stride, first - shift, last - shift)
""")],
    # Not in a paper: how many ports of C3D make 4 rows out of 7
    'network': [('c3d.C3D.__init__', """\
                layers[name] = nn.MaxPool3d(size, ceil_mode=True)
""", """\
                padding = (0, 1, 1) if name == 'pool5' else 0
                layers[name] = nn.MaxPool3d(size, padding=padding, ceil_mode=True)
""")],
    # Eq. 13 and 14: the gradient of p(Y|m_k, A) instead of that of its logarithm
    'vimco': [('astar.vimco', """\
    score = (learning.detach() * (log_pm - log_pm.detach())).sum(1)
    return bound.detach(), bound + score                                    # Eq. 14  (B,)
""", """\
    first = (learning.detach() * (log_pm - log_pm.detach())).sum(1)
    p = log_py.exp()
    omega = log_py.softmax(1).detach()
    second = (omega * (p - p.detach())).sum(1)              # its gradient: sum of omega_k grad p
    return bound.detach(), bound.detach() + first + second                  # Eq. 14  (B,)
""")],
    # Eq. 21: both terms have the factor -(R_e - R_e-1).
    'refocus-loss': [('vre.refocus_loss', """\
    return -rise.abs() * torch.where(rise > 0, log_alpha, log_rest)     # Eq. 21  (B,)
""", """\
    return -rise * torch.where(rise > 0, log_alpha, log_rest)           # Eq. 21  (B,)
""")],
    # Eq. 11: the key is the arg max, so both keys of a step are the same.
    'drawn-key': [('vre.Captioner.watch', """\
            keys = scores.softmax(1).multinomial(draws, replacement=True).unbind(1)
""", """\
            keys = [scores.argmax(1)] * draws                           # Eq. 11  (N,) each
""")],
}
