"""Lab 1: three optimizers, written by hand. TASK.md, sections 2 and 3.

Each hole raises NotImplementedError: put your code in its place. Only torch is needed.

    python test_lab.py        a few small tests
    drumline lab check .      all checks, with explanations
"""

import torch


class Optimizer:
    """What the three have in common. There is nothing to do here."""

    def __init__(self, params, lr):
        self.params = list(params)
        self.lr = lr

    def zero_grad(self):
        for param in self.params:
            param.grad = None


class GD(Optimizer):
    """Gradient descent: w <- w - lr * g, where g is the gradient over ALL samples.

    Which samples the gradient is of is decided in training.py.
    """

    @torch.no_grad()
    def step(self):
        # A parameter whose .grad is None stays as it is (in all three optimizers).
        for param in self.params:
            if param.grad is not None:
                param -= self.lr * param.grad


class SGD(Optimizer):
    """Stochastic gradient descent with momentum:

    b <- momentum * b + g        one b for each parameter; in the first step b <- g
    w <- w - lr * b
    """

    def __init__(self, params, lr, momentum=0.0):
        super().__init__(params, lr)
        self.momentum = momentum
        self.buffers = [None] * len(self.params)

    @torch.no_grad()
    def step(self):
        for i, param in enumerate(self.params):
            if param.grad is None:
                continue
            if self.buffers[i] is None:
                self.buffers[i] = param.grad.clone()
            else:
                self.buffers[i] = self.momentum * self.buffers[i] + param.grad
            param -= self.lr * self.buffers[i]


class Adam(Optimizer):
    """Adam (Kingma & Ba, 2015):

    t <- t + 1
    m <- beta1 * m + (1 - beta1) * g          v <- beta2 * v + (1 - beta2) * g * g
    m_hat = m / (1 - beta1 ** t)              v_hat = v / (1 - beta2 ** t)
    w <- w - lr * m_hat / (sqrt(v_hat) + eps)

    m and v start at 0, one of each for each parameter.
    """

    def __init__(self, params, lr, betas=(0.9, 0.999), eps=1e-8):
        super().__init__(params, lr)
        self.betas = betas
        self.eps = eps
        self.t = 0
        self.m = [torch.zeros_like(param) for param in self.params]
        self.v = [torch.zeros_like(param) for param in self.params]

    @torch.no_grad()
    def step(self):
        beta1, beta2 = self.betas
        self.t += 1
        for i, param in enumerate(self.params):
            if param.grad is None:
                continue
            g = param.grad
            self.m[i] = beta1 * self.m[i] + (1 - beta1) * g
            self.v[i] = beta2 * self.v[i] + (1 - beta2) * g * g
            m_hat = self.m[i] / (1 - beta1**self.t)
            v_hat = self.v[i] / (1 - beta2**self.t)
            param -= self.lr * m_hat / (v_hat.sqrt() + self.eps)
