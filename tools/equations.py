r"""The numbered equations of the papers, in LaTeX: what `python -m tools.annotate` shows.

EQUATIONS[paper][number] is (LaTeX, note). The numbers are those of the comments in the code, and
the symbols are the paper's; `Paper -> code` at the top of each file translates them. Where the
paper misprints an equation, it stands here as the code computes it, and the note says so.
"""

STA = {
    '2.1': (r'\begin{matrix} i_t \\ f_t \\ o_t \\ g_t \end{matrix} = '
            r'\begin{matrix} \sigma \\ \sigma \\ \sigma \\ \tanh \end{matrix} '
            r'M \begin{matrix} h_{t-1} \\ x_t \end{matrix}',
            'The code uses nn.LSTMCell for Eq. 2.1 to 2.3.'),
    '2.2': (r'c_t = f_t \odot c_{t-1} + i_t \odot g_t', ''),
    '2.3': (r'h_t = o_t \odot \tanh(c_t)', ''),
    '2.4': (r'l_{t,i} = p(L_t = i \mid h_{t-1}) = \frac{\exp(W_i^\top h_{t-1})}'
            r'{\sum_{j=1}^{K \times K} \exp(W_j^\top h_{t-1})}', ''),
    '2.5': (r'x_t = \mathbb{E}_{p(L_t \mid h_{t-1})}[X_t] = \sum_{i=1}^{K^2} l_{t,i} X_{t,i}', ''),
    '2.6': (r'\begin{align*} c_0 &= f_{\mathrm{init},c} \left( \frac{1}{T} \sum_{t=1}^{T} '
            r'\frac{1}{K^2} \sum_{i=1}^{K^2} X_{t,i} \right) \\ h_0 &= f_{\mathrm{init},h} \left( '
            r'\frac{1}{T} \sum_{t=1}^{T} \frac{1}{K^2} \sum_{i=1}^{K^2} X_{t,i} \right) '
            r'\end{align*}', ''),
    '2.7': (r'\begin{align*} L &= - \sum_{t=1}^{T} \sum_{i=1}^{C} y_{t,i} \log \, \hat{y}_{t,i} \\ '
            r'& + \lambda \sum_{i=1}^{K \times K} \left( 1 - \sum_{t=1}^{T} l_{t,i} \right)^2 '
            r'+ \gamma \sum_i \sum_j \theta_{i,j}^2 \end{align*}',
            'The optimizer adds the last term, as weight decay.'),
    '3.1': (r'\begin{matrix} i_t \\ f_t \\ o_t \\ g_t \end{matrix} = '
            r'\begin{matrix} \sigma \\ \sigma \\ \sigma \\ \tanh \end{matrix} '
            r'M \begin{matrix} E y_{t-1} \\ h_{t-1} \\ x_t \end{matrix}', ''),
    '3.2': (r'l_{t,i} = p(L_t = i \mid h_{t-1}) = \frac{\exp(W_i^\top h_{t-1})}'
            r'{\sum_{j=1}^{N K^2} \exp(W_j^\top h_{t-1})}',
            'The paper prints a denominator that sums over K × K places only.'),
    '3.3': (r'x_t = \beta_t \, \mathbb{E}_{p(L_t \mid h_{t-1})}[X] '
            r'= \beta_t \sum_{i=1}^{N K^2} l_{t,i} X_i', ''),
    '3.4': (r'p(y_t \mid X, y_{t-1}) \propto \exp(W_p (E y_{t-1} + W_h h_t + W_x x_t))', ''),
    '3.5': (r'\beta_t = \sigma(f_\beta(h_{t-1}))', ''),
    '3.6': (r'L = - \log \, P(y \mid x) + \lambda \sum_{i=1}^{N K^2} '
            r'\left( 1 - \sum_{t=1}^{C} l_{t,i} \right)^2 + \gamma \sum_i \sum_j \theta_{i,j}^2',
            'The optimizer adds the last term, as weight decay.'),
}

STATS = {
    '1': (r'e_t = \mathrm{softmax}_t(\mathrm{att}(h_{i-1}, x_t))', ''),
    '2': (r'\mathrm{att}(h_{i-1}, x_t) = w^\top \tanh(W_h h_{i-1} + W_x x_t + b)',
          'In the code the query q = [h, s] takes the place of h.'),
    '3': (r'e^S_{tj} = \mathrm{softmax}_j(\mathrm{att}(h_{i-1}, x_{tj})), \quad '
          r'\sum_{j=1}^{n} e^S_{tj} = 1',
          'On a grid, the mean of a place over time takes the place of its feature, so all frames '
          'have the same weights (Sec. 3.1.1).'),
    '6': (r'\underset{\theta}{\min} \sum_t \mathrm{softplus}(\zeta_t)', ''),
    '7': (r'\zeta_t = \langle \hat{x}_{\mathrm{ST}}, \hat{x}_{t-1} \rangle + \beta '
          r'- \langle \hat{x}_{\mathrm{ST}}, \hat{x}_t \rangle', ''),
    '8': (r'\hat{x}_{\mathrm{ST}} = \bigoplus_{t=1}^{T} \mathrm{LSTM}_\theta(\hat{x}_t)',
          'The output of the LSTM after the last frame.'),
    '9': (r'\tau_t = \mathrm{softmax}_t \left( \frac{\mathrm{att}(h_{i-1}, \bar{x}_t)}{\kappa} '
          r'\right), \quad x_{\tau j} = \sum_t \tau_t x_{tj}',
          'The paper prints an arg max over t, and says in the text that it uses a softmax with a '
          'low temperature. The letter κ for this temperature is ours.'),
    '10': (r'e^{\mathrm{TS}}_j = \mathrm{softmax}_j(\mathrm{att}(h_{i-1}, x_{\tau j})), \quad '
           r'\sum_j e^{\mathrm{TS}}_j = 1', 'The paper prints no softmax.'),
    '11': (r'\hat{x}_{\mathrm{TS}} = \sum_j e^{\mathrm{TS}}_j x_{\tau j}', ''),
    '12': (r'\hat{x} = \tanh \left( \frac{\exp(\beta_1) \hat{x}_{\mathrm{ST}} '
           r'+ \exp(\beta_2) \hat{x}_{\mathrm{TS}}}'
           r'{\exp(\beta_1) + \exp(\beta_2)} \right)', ''),
}

ASTAR = {
    '1': (r'p(Y \mid A) = p(y_1 \mid A) \prod_{t=2}^{T} p(y_t \mid y_{<t}, A)', ''),
    '2': (r'\log \, p(Y \mid A) = \log \, p(y_1 \mid A) '
          r'+ \sum_{t=2}^{T} \log \, p(y_t \mid y_{<t}, A)', ''),
    '2 of the first version': (
        r'\begin{align*} i_t &= \sigma(W_{iw} w_{t-1} + W_{ih} h_{t-1} + W_{iz} z_t) \\ '
        r'f_t &= \sigma(W_{fw} w_{t-1} + W_{fh} h_{t-1} + W_{fz} z_t) \\ '
        r'o_t &= \sigma(W_{ow} w_{t-1} + W_{oh} h_{t-1} + W_{oz} z_t) \\ '
        r'\tilde{c}_t &= \tanh(W_{cw} w_{t-1} + W_{ch} h_{t-1} + W_{cz} z_t) \\ '
        r'c_t &= f_t \odot c_{t-1} + i_t \odot \tilde{c}_t \\ '
        r'h_t &= o_t \odot \tanh(c_t) \end{align*}', 'This is nn.LSTMCell.'),
    '3': (r'\hat{a}_l = f \left( \sum_{k=1}^{n_F^l} a_l(k) * U_{k,l} \right)',
          'The function f is a ReLU and then a maximum over windows.'),
    '4': (r'e_{ti} = w_\alpha^\top \tanh(W_{a\alpha} \hat{a}_i + W_{h\alpha} h_{t-1})', ''),
    '5': (r'\alpha_{ti} = \mathrm{softmax}(\{ e_{ti} \}), \quad '
          r's_t = \psi(\{ \hat{a}_i \}, \{ \alpha_{ti} \})', ''),
    '6': (r'b_{tl} = w_\beta^\top \tanh(W_{s\beta} s_{tl} + W_{h\beta} h_{t-1})', ''),
    '7': (r'\beta_{tl} = \mathrm{softmax}(\{ b_{tl} \}), \quad '
          r'z_t = \psi(\{ s_{tl} \}, \{ \beta_{tl} \})', ''),
    '8': (r'z_t = \psi(\{ s_{tl} \}, \{ \beta_{tl} \}) = \sum_{l=1}^{L} \beta_{tl} s_{tl}', ''),
    '9': (r'm_t \sim \mathrm{Mult}(1, \{ \beta_{tl} \}), \quad z_t = \sum_{l=1}^{L} m_{tl} s_{tl}',
          ''),
    '10': (r'\log \, p(Y \mid A) \geq \mathbb{E}_{p(m \mid A)} \log \, p(Y \mid m, A)',
           'The paper prints = instead of ≥.'),
    '11': (r'\log \, p(Y \mid A) \geq \mathbb{E}_{p(m \mid A)} \log \, p(Y \mid m, A)',
           'Eq. 10 again, in the appendix. The paper prints = instead of ≥.'),
    '12': (r'\mathcal{L}^K(Y) = \sum_{m^{1:K}} p(m^{1:K} \mid A) \left[ \log \, \frac{1}{K} '
           r'\sum_{k=1}^{K} p(Y \mid m^k, A) \right]', ''),
    '13': (r'\begin{align*} & \nabla \mathcal{L}^K(Y) = \sum_{m^{1:K}} p(m^{1:K} \mid A) \\ '
           r'& \sum_{k=1}^{K} \big[ L(m^{1:K}) \nabla \log \, p(m^k \mid A) '
           r'+ \omega_k \nabla \log \, p(Y \mid m^k, A) \big] \\ '
           r'& L(m^{1:K}) = \log \, \frac{1}{K} \sum_{k=1}^{K} p(Y \mid m^k, A) \\ '
           r'& \omega_k = \frac{p(Y \mid m^k, A)}{\sum_j p(Y \mid m^j, A)} \end{align*}',
           'The paper prints the second term without the log.'),
    '14': (r'\begin{align*} & \nabla \mathcal{L}^K(Y) \approx \sum_{k=1}^{K} \big[ '
           r'\hat{L}(m^k \mid m^{-k}) \nabla \log \, p(m^k \mid A) \\ '
           r'& \qquad + \omega_k \nabla \log \, p(Y \mid m^k, A) \big] \end{align*}',
           'The paper prints the second term without the log.'),
    '15': (r'\begin{align*} & \hat{L}(m^k \mid m^{-k}) = L(m^{1:K}) \\ '
           r'& \quad - \log \, \frac{1}{K} \left( \sum_{j \neq k} p(Y \mid m^j, A) '
           r'+ f(Y, m^{-k}, A) \right) \end{align*}', ''),
    '16': (r'f(Y, m^{-k}, A) = \exp \left( \frac{1}{K - 1} \sum_{j \neq k} '
           r'\log \, p(Y \mid m^j, A) \right)', ''),
    '17': (r'\tilde{a}_{i,l}(k) = \max_{j \in N_{i,l}} a_{j,l}(k) \quad \text{or} \quad '
           r'\frac{1}{|N_{i,l}|} \sum_{j \in N_{i,l}} a_{j,l}(k)',
           'The paper prints the index i instead of j in the sum.'),
    '18': (r'\hat{a}_{i,l} = \mathrm{MLP}(\tilde{a}_{i,l})', ''),
}

VRE = {
    '2': (r'v^f_i = \frac{1}{N \times M} \sum_{n,m} v_{i,n,m} \quad '
          r'\text{for } i = 0, \ldots, K-1', ''),
    '3': (r'v^s = \frac{1}{K} \sum_i v_{i,:,:}', ''),
    '4': (r'\overleftrightarrow{h} = \mathrm{KBiGRU}(V^f, i_{\mathrm{key}})', ''),
    '5': (r'\overleftarrow{h}_i = \overleftarrow{\mathrm{GRU}}(v^f_i, \overleftarrow{h}_{i+1}) '
          r'\quad \text{for } i = i_{\mathrm{key}}, \ldots, 0', ''),
    '6': (r'\overrightarrow{h}_j = \overrightarrow{\mathrm{GRU}}(v^f_j, \overrightarrow{h}_{j-1}) '
          r'\quad \text{for } j = i_{\mathrm{key}}, \ldots, K-1', ''),
    '7': (r'\overleftrightarrow{h} = \tanh(W_c [\overleftarrow{h}_0, \overrightarrow{h}_{K-1}] '
          r'+ b_c)', ''),
    '8': (r'a_i = W_\alpha \tanh(W_o o_1 \otimes W_v v^f_i)',
          'The product is element by element. The paper adds a bias, which the softmax of Eq. 9 '
          'cancels.'),
    '9': (r'\alpha = \mathrm{softmax}(a)', ''),
    '10': (r'i_{\mathrm{key}} = F_{\mathrm{Refocus}}(o_1, V^f)', ''),
    '11': (r'i_{\mathrm{key}} = \underset{i}{\mathrm{argmax}} \, '
           r'\{ \alpha_0, \ldots, \alpha_i, \ldots, \alpha_{K-1} \}', ''),
    '12': (r'v^S_{\mathrm{Att}} = \mathrm{Att}^S_{\mathrm{Soft}}(v^s, [o, h_{t-1}])',
           'The paper prints the state alone here, and [o, h] in algorithm 2.'),
    '13': (r'v^T_{\mathrm{Att}} = \mathrm{Att}^T_{\mathrm{Soft}}(V^f, [o, h_{t-1}])',
           'The paper prints the state alone here, and [o, h] in algorithm 2.'),
    '14': (r'a^T_i = W_\beta \tanh(W_h [o, h_{t-1}] \otimes W^\beta_v v^f_i)',
           'The paper prints the state alone here, and adds a bias, which the softmax of Eq. 15 '
           'cancels.'),
    '15': (r'\alpha^T = \mathrm{softmax}(a^T)', ''),
    '16': (r'v^T_{\mathrm{Att}} = \sum_{i=0}^{K-1} \alpha^T_i v^f_i', ''),
    '17': (r'L^{\mathrm{STEP1},e}_{\mathrm{xe}} = - \sum_t '
           r'\log \, p^{\mathrm{STEP1},e}(y_t \mid y_{1:t-1}, V^f, v^s, v^a)', ''),
    '18': (r'L^{\mathrm{STEP2},e}_{\mathrm{xe}} = - \sum_t '
           r'\log \, p^{\mathrm{STEP2},e}(y_t \mid y_{1:t-1}, V^f, v^s, v^a)', ''),
    '20': (r'R_e = - (L^{\mathrm{STEP2},e}_{\mathrm{xe}} '
           r'- L^{\mathrm{STEP1},e}_{\mathrm{xe}})', ''),
    '21': (r'L_{R+} = - |R_e - R_{e-1}| \left( 1^+ \log(\alpha_{i_{\mathrm{key}},e}) '
           r'+ 1^- \log(1 - \alpha_{i_{\mathrm{key}},e}) \right)',
           'The first indicator is 1 if the reward has risen, the second if it has fallen. The '
           'paper prints the difference without the absolute value.'),
    '22': (r'L_{\mathrm{All}} = L^{\mathrm{STEP2},e}_{\mathrm{xe}} '
           r'+ L^{\mathrm{STEP1},e}_{\mathrm{xe}} + \beta L_{R+}', ''),
}

EQUATIONS = {'sta': STA, 'stats': STATS, 'c3d': {}, 'astar': ASTAR, 'vre': VRE, 'decode': {}}
