from torch import nn

from .data import PAD, VOCABULARY


class Classifier(nn.Module):
    def __init__(self, width, layers, dropout):
        super().__init__()
        self.embed = nn.Embedding(VOCABULARY, width, padding_idx=PAD)
        layer = nn.TransformerEncoderLayer(
            width, 4, 2 * width, dropout, batch_first=True, norm_first=True
        )
        self.encoder = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
        self.head = nn.Linear(width, 2)

    def forward(self, tokens):
        padding = tokens == PAD
        hidden = self.encoder(self.embed(tokens), src_key_padding_mask=padding)
        kept = (~padding).unsqueeze(-1).float()
        return self.head((hidden * kept).sum(1) / kept.sum(1))
